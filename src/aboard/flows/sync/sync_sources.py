"""What `aboard sync` sends: the named paths, or the working directory and what aboard.yaml names as data and model."""

from collections.abc import Sequence
from pathlib import Path

from aboard.config.input_files import suggest_similar_file
from aboard.config.this_machine import abbreviate_home
from aboard.core.cluster.file_sync import LeftOutPath
from aboard.core.text.data_reference import DataReference
from aboard.diagnoses import AboardError, InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import commands, configuration
from aboard.flows.sync.source_tree import SourceTree, scan_code, scan_data, scan_file
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class TrainingFiles:
    """The local data and model of a configuration, and the directory that runs write to, which is never sent."""

    data: tuple[Path, ...] = ()
    output: Path | None = None


def scan_sources(
    code: Sequence[Path], data: Sequence[Path], training: TrainingFiles, *, ignored: bool = False
) -> list[SourceTree]:
    """The named paths; with none, the working directory without the data in it, and the training's data.

    `ignored` sends what .gitignore names, too.
    """
    refuse_home((*code, *data, *training.data))
    for path in (*code, *data):
        if not path.exists():
            seen = "there is no such file or directory"
            fix = suggest_similar_file(str(path)) or configuration.FILE.fix("left-out")
            raise InputError(configuration.FILE, [Problem(where=escape_text(str(path), 200), seen=seen, fix=fix)])
    if code or data:
        return [*(_scan_code(path, ignored=ignored) for path in code), *(_scan_data(path) for path in data)]
    return [scan_working_directory(training, ignored=ignored), *(_scan_data(path) for path in training.data)]


def refuse_home(paths: Sequence[Path]) -> None:
    """Raises for a path that has the user's keys in it: they would be sent, and the logins of nodes replaced."""
    homes = {Path.home(), Path.home().resolve()}
    for path in paths:
        whole = path.resolve()
        if whole in homes:
            what = "is your home directory"
        elif whole.is_dir() and any(home.is_relative_to(whole) for home in homes):
            what = "contains your home directory"
        elif any(whole.is_relative_to(home / ".ssh") for home in homes):
            what = "belongs to the keys of your home directory"
        else:
            continue
        raise AboardError(commands.SYNC_HOME, f"{escape_text(str(whole), 300)} {what}")


def list_left_out(trees: Sequence[SourceTree]) -> list[LeftOutPath]:
    """What .gitignore keeps out of the trees, the largest first, named as seen from the working directory."""
    here = Path.cwd()
    found = []
    for tree in trees:
        for each in tree.left_out:
            path = tree.root / each.path
            found.append(each._replace(path=str(path.relative_to(here) if path.is_relative_to(here) else path)))
    return sorted(found, key=lambda each: (-each.bytes, each.path))


def scan_working_directory(training: TrainingFiles, *, ignored: bool = False) -> SourceTree:
    """Data is sent on its own; what runs write must not be sent back to the nodes, nor deleted there."""
    here = Path.cwd()
    refuse_home((here,))
    skipped = [*training.data, *([training.output] if training.output is not None else [])]
    return scan_code(here, abbreviate_home(here), skipped=skipped, ignored=ignored)


def load_training_files(files: Sequence[str], sets: Sequence[str]) -> TrainingFiles:
    """The files and directories on this machine that the sections `data` and `train` name."""
    if not files:
        return TrainingFiles()
    # Imported here: pydantic takes 100 ms, which named paths don't need.
    from aboard.config.config_loader import load_config_files  # noqa: PLC0415
    from aboard.config.training.data_settings import build_data_settings  # noqa: PLC0415
    from aboard.config.training.train_settings import OUTPUT  # noqa: PLC0415

    config = load_config_files(files, sets)
    data, train = build_data_settings(config), config.document.train
    files = [DataReference.parse(name).path for name in (*data.files, *data.validation)]
    names = [*files, *(name for name in (data.tokenizer, data.template) if name)]
    paths = [Path(name).absolute() for name in names]
    output = None
    if train is not None:
        output = Path(config.base("train", "output_dir"), train.output_dir or OUTPUT).absolute()
        if train.model is not None:
            model = Path(config.base("train", "model"), Path(train.model).expanduser()).absolute()
            paths.append(model.parent if model.is_file() else model)
    return TrainingFiles(data=tuple(dict.fromkeys(path for path in paths if path.exists())), output=output)


def _scan_code(path: Path, *, ignored: bool) -> SourceTree:
    path = path.absolute()
    if path.is_dir():
        return scan_code(path, abbreviate_home(path), explicit=True, ignored=ignored)
    return scan_file(path, abbreviate_home(path.parent), is_data=False)


def _scan_data(path: Path) -> SourceTree:
    path = path.absolute()
    if path.is_dir():
        return scan_data(path, abbreviate_home(path))
    return scan_file(path, abbreviate_home(path.parent), is_data=True)
