"""What `aboard sync` sends: the named paths, or the working directory and what aboard.yaml names as data and model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aboard.agent.transfer.root_folder import SYSTEM_FOLDERS
from aboard.commands.sync.trees.source_tree import SourceTree, scan_code, scan_data, scan_file
from aboard.config.input_files import suggest_similar_file
from aboard.config.this_machine import locate_on_nodes
from aboard.core.cluster.file_sync import LeftOutPath
from aboard.core.text.data_reference import DataReference
from aboard.diagnoses import AboardError, InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import commands, configuration
from aboard.foreign_files import follow_links
from aboard.lazy_dataclass import dataclass

# Below the home directory. Tools keep a key, a password or a token of the user there.
_CREDENTIALS = (
    ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".netrc", ".pgpass", ".kaggle", ".docker/config.json",
    ".config/gcloud", ".config/gh", ".git-credentials", ".databrickscfg", ".cache/huggingface/token",
    ".cache/huggingface/stored_tokens",
)  # fmt: skip


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
    refuse_private_paths((*code, *data, *training.data))
    for path in (*code, *data):
        if not path.exists():
            seen = "there is no such file or directory"
            fix = suggest_similar_file(str(path)) or configuration.FILE.fix("left-out")
            raise InputError(configuration.FILE, [Problem(where=escape_text(str(path), 200), seen=seen, fix=fix)])
    if code or data:
        trees = [_scan_code(path, skipped=_list_output(training), ignored=ignored) for path in code]
        return [replace(tree, is_named=True) for tree in (*trees, *(_scan_data(path, (*code, *data)) for path in data))]
    trees = [_scan_data(path, training.data) for path in training.data]
    return [scan_working_directory(training, ignored=ignored), *trees]


def refuse_private_paths(paths: Sequence[Path]) -> None:
    """Raises for a path that has the user's keys in it: they would be sent, and the logins of nodes replaced."""
    homes = {Path.home(), Path.home().resolve()}
    for path in paths:
        refuse_system_path(path)
        whole = path.resolve()
        keys = [key for home in homes for name in _CREDENTIALS for key in (home / name, (home / name).resolve())]
        if whole in homes:
            what = "is your home directory"
        elif whole.is_dir() and any(home.is_relative_to(whole) for home in homes):
            what = "contains your home directory"
        elif key := next((key for key in keys if whole.is_relative_to(key)), None):
            what = f"has your keys or tokens: it belongs to {escape_text(str(key), 300)}"
        elif key := next((key for key in keys if key.is_relative_to(whole) and key.exists()), None):
            what = f"has your keys or tokens: it contains {escape_text(str(key), 300)}"
        else:
            continue
        raise AboardError(commands.SYNC_HOME, f"{escape_text(str(whole), 300)} {what}")


def refuse_system_path(path: Path) -> None:
    """Raises for a path that leads through /proc, /dev or /sys, be it through links: on a node it is another file."""
    try:
        through = next((str(at) for at in follow_links(path.absolute()) if str(at) in SYSTEM_FOLDERS), "")
    except OSError:
        through = "a circle of links"
    if through:
        raise AboardError(commands.SYNC_SYSTEM, f"{escape_text(str(path), 300)} leads through {through}", path=path)


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
    refuse_private_paths((here,))
    # A link to data is sent as a link, and the data goes to its real path.
    skipped = [path.resolve() for path in training.data] + _list_output(training)
    return scan_code(here, locate_on_nodes(here), skipped=skipped, ignored=ignored)


def load_training_files(files: Sequence[str], sets: Sequence[str]) -> TrainingFiles:
    """The files and directories on this machine that the sections `data` and `train` name."""
    if not files:
        return TrainingFiles()
    # Imported here: pydantic takes 100 ms, which named paths don't need.
    from aboard.config.config_loader import load_config_files  # noqa: PLC0415
    from aboard.config.schema.data_settings import build_data_settings  # noqa: PLC0415
    from aboard.core.plan.training_settings import DEFAULT_OUTPUT_DIR  # noqa: PLC0415

    config = load_config_files(files, sets)
    data, train = build_data_settings(config), config.document.train
    files = [DataReference.parse(name).path for name in (*data.files, *data.validation)]
    names = [*files, *(name for name in (data.tokenizer, data.template) if name)]
    paths = [Path(name).absolute() for name in names]
    output = None
    if train is not None:
        output = Path(config.base("train", "output_dir"), train.output_dir or DEFAULT_OUTPUT_DIR).absolute()
        if train.model is not None:
            model = Path(config.base("train", "model"), Path(train.model).expanduser()).absolute()
            paths.append(model.parent if model.is_file() else model)
    return TrainingFiles(data=tuple(dict.fromkeys(path for path in paths if path.exists())), output=output)


def _list_output(training: TrainingFiles) -> list[Path]:
    return [] if training.output is None else [training.output, training.output.resolve()]


def _scan_code(path: Path, *, skipped: Sequence[Path], ignored: bool) -> SourceTree:
    real = path.resolve()
    if real.is_dir():
        return scan_code(real, locate_on_nodes(path), skipped=skipped, explicit=True, ignored=ignored)
    return _scan_file(path, is_data=False)


def _scan_data(path: Path, others: Sequence[Path]) -> SourceTree:
    real = path.resolve()
    return scan_data(real, locate_on_nodes(path), others=others) if real.is_dir() else _scan_file(path, is_data=True)


def _scan_file(path: Path, *, is_data: bool) -> SourceTree:
    real = path.resolve()
    # A link to a file elsewhere goes where that file is.
    folder = real.parent if path.is_symlink() else path.parent
    return scan_file(real, locate_on_nodes(folder), is_data=is_data)
