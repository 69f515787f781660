"""Reads a launcher that a script called on a node, as captured there: its words, variables, directory and files."""

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Annotated

from aboard.core.cluster.interpreter import NO_ENV
from aboard.core.decoding import CustomDecoder, DecodeError, Word, decode
from aboard.core.launchers.accelerate.accelerate_flags import NAME as ACCELERATE
from aboard.core.launchers.containers.parse_container import drop_outside_variables
from aboard.core.launchers.deepspeed import NAME as DEEPSPEED
from aboard.core.launchers.launcher_command import LauncherCommand, LauncherFiles
from aboard.core.launchers.parse_command import VISIBLE, parse_launcher_command
from aboard.core.launchers.slurm.srun import NAME as SRUN
from aboard.core.launchers.torchrun import LAUNCH_GRAMMAR, NAME as TORCHRUN
from aboard.core.plan.rank_variables import INTERFACE_VARIABLES, list_torchrun_variables
from aboard.core.run.events import STREAMS
from aboard.core.secrets.secret_scrubber import mask_words
from aboard.core.text.input_text import find_env_name_error, format_list
from aboard.diagnoses import InputError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import captured_scripts
from aboard.diagnoses.usage.pasted_commands import quote_command_line
from aboard.lazy_dataclass import dataclass

# Text and path of an accelerate config file; the mapping has validated keys.
SettingsParser = Callable[[str, str], Mapping[str, object]]

_MOST_WORDS, _MOST_VARIABLES, _MOST_FILES = 32_768, 2048, 16
# Linux passes no longer word to a program, and has no longer path.
_LONGEST_WORD, _LONGEST_PATH, _LONGEST_NAME = 128 * 1024, 4096, 256
_LONGEST_COMMAND = 300
_LARGEST_FILE, _MOST_CHARACTERS = 64 * 1024, 1_000_000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHELL_FUNCTION = re.compile(r"BASH_FUNC_.*(%%|\(\))", re.DOTALL)

# The node sends their commands only if they would start ranks.
_STARTERS = frozenset({"ssh", "pdsh", "clush", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
_LAUNCHERS = frozenset({TORCHRUN, LAUNCH_GRAMMAR.launcher, DEEPSPEED, ACCELERATE})
# What the head and the script's own steps would take for theirs.
_SLURMS_OWN = ("SLURM_", "SRUN_", "SBATCH_", "SALLOC_")
# The head's reply to a captured command that runs as it is, in place of an exit code.
RUN_ITSELF = -1
# The options of ulimit that a script may have used.
_LIMITS = frozenset("cdlnsuv")
# What Aboard sets for each rank, or for the script.
_OWN_VARIABLES = frozenset({*list_torchrun_variables(), "NNODES", "NODE_RANK", "PWD", "OLDPWD", "SHLVL", "_"})
# Aboard computes these for each node; who unsets them means the login's.
_NODE_DEFAULTS = frozenset({"OMP_NUM_THREADS", *INTERFACE_VARIABLES})


def _decode_text(value: object, longest: int = _LONGEST_WORD) -> str:
    if not isinstance(value, str):
        raise DecodeError("expected text")
    if len(value) > longest:
        raise DecodeError(f"it has {len(value):,} characters, and the maximum is {longest:,}")
    if "\0" in value or _SURROGATE.search(value):
        raise DecodeError("it has a NUL character, or is not UTF-8")
    return value


def _decode_path(value: object) -> str:
    path = _decode_file_name(value)
    if not path.startswith("/"):
        raise DecodeError(f"'{escape_text(path)}' is not an absolute path")
    return path


def _decode_python(value: object) -> str:
    """Empty if the node has none."""
    return _decode_path(value) if value != "" else ""


def _decode_file_name(value: object) -> str:
    name = _decode_text(value, _LONGEST_PATH)
    if not name or _CONTROL.search(name):
        raise DecodeError(f"'{escape_text(name)}' is not a path")
    return name


def _decode_words(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_WORDS:
        raise DecodeError(f"expected 1 to {_MOST_WORDS:,} words")
    return _limit_size(tuple(map(_decode_text, value)))


def _decode_env(value: object) -> Mapping[str, str]:
    """Without functions that a shell exported (`BASH_FUNC_module%%`), whose names no other program accepts."""
    if not isinstance(value, dict) or len(value) > _MOST_VARIABLES:
        raise DecodeError(f"expected at most {_MOST_VARIABLES:,} variables")
    env = {}
    for name, text in value.items():
        if not (isinstance(name, str) and _SHELL_FUNCTION.fullmatch(name)):
            try:
                env[_decode_variable_name(name)] = _decode_text(text)
            except DecodeError as error:
                raise DecodeError(f"{escape_text(str(name))}: {error}") from None
    _limit_size(tuple(env.values()))
    return env


def _decode_names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _MOST_VARIABLES:
        raise DecodeError(f"expected at most {_MOST_VARIABLES:,} names of variables")
    return tuple(_decode_variable_name(name) for name in value if not _SHELL_FUNCTION.fullmatch(str(name)))


def _decode_variable_name(value: object) -> str:
    name = _decode_text(value, _LONGEST_NAME)
    if trouble := find_env_name_error(name):
        raise DecodeError(trouble)
    return name


def _decode_limits(value: object) -> Mapping[str, int]:
    if not isinstance(value, dict) or not _LIMITS.issuperset(value):
        raise DecodeError("expected limits by their option of ulimit")
    if any(type(limit) is not int or limit < -1 for limit in value.values()):
        raise DecodeError("expected limits of at least -1")
    return dict(value)


def _decode_files(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict) or len(value) > _MOST_FILES:
        raise DecodeError(f"expected at most {_MOST_FILES} files")
    return {_decode_file_name(name): _decode_text(text, _LARGEST_FILE) for name, text in value.items()}


def _decode_streams(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or any(name not in STREAMS for name in value):
        raise DecodeError("expected names of streams")
    return tuple(value)


def _limit_size(words: tuple[str, ...]) -> tuple[str, ...]:
    if sum(map(len, words)) > _MOST_CHARACTERS:
        raise DecodeError(f"together they have more than {_MOST_CHARACTERS:,} characters")
    return words


@dataclass(frozen=True, kw_only=True)
class Capture:
    """A launcher's process on a node. `env` are the variables that the script set, `removed` those that it unset.

    `limits` are those that it set, by ulimit's options; -1 is unlimited. `argv` starts with the launcher's name.
    `python` would have run the launcher. `files` has the text of files that the words name, and of the launcher's own,
    by path. `script` and `line` called it; line 0 is unknown. `host` is what the node calls itself. `number` is that of
    the capture. `streams` are those that the script sends elsewhere than its own, as by `| tee`.
    """

    node: str
    launcher: Annotated[str, CustomDecoder(_decode_file_name)]
    argv: Annotated[tuple[str, ...], CustomDecoder(_decode_words)]
    cwd: Annotated[str, CustomDecoder(_decode_path)]
    python: Annotated[str, CustomDecoder(_decode_python)] = ""
    env: Annotated[Mapping[str, str], CustomDecoder(_decode_env)] = field(default_factory=lambda: NO_ENV, repr=False)
    removed: Annotated[tuple[str, ...], CustomDecoder(_decode_names)] = ()
    limits: Annotated[Mapping[str, int], CustomDecoder(_decode_limits)] = field(default_factory=dict)
    files: Annotated[Mapping[str, str], CustomDecoder(_decode_files)] = field(
        default_factory=lambda: NO_ENV, repr=False
    )
    script: str = ""
    line: int = 0
    host: Word = ""
    number: int = 0
    streams: Annotated[tuple[str, ...], CustomDecoder(_decode_streams)] = ()


def parse_capture(raw: object, node: str, number: int = 0) -> Capture:
    """Decodes what a node sent; the InputError names the node, the field and what is odd about it."""
    try:
        return decode(Capture, {**raw, "node": node, "number": number} if isinstance(raw, dict) else None, strict=True)
    except DecodeError as error:
        raise InputError.of(
            captured_scripts.UNUSABLE, node, f"the captured launcher is odd: {error}", "report", node=node
        ) from None


@dataclass(frozen=True, kw_only=True)
class CapturedFiles:
    """The files that came with a capture; relative paths start in the launcher's directory."""

    capture: Capture
    parse: SettingsParser

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def read(self, path: str) -> str:
        text = self._find(path)
        if text is None:
            node = self.capture.node
            seen = f"{node} has no such file, or it is no regular file of at most 64 KiB"
            raise InputError.of(captured_scripts.UNUSABLE, path, seen, "file", path=path, node=node)
        return text

    def settings(self, path: str) -> Mapping[str, object]:
        return self.parse(self.read(path), path)

    def _find(self, path: str) -> str | None:
        wanted = _locate(path, self.capture.cwd)
        found = (text for name, text in self.capture.files.items() if _locate(name, self.capture.cwd) == wanted)
        return next(found, None)


def read_captured_launch(
    capture: Capture,
    launch: tuple[str, ...],
    files: LauncherFiles,
    *,
    environ: Mapping[str, str] | None = None,
) -> LauncherCommand:
    """Parses the captured words as if they had been pasted; `launch` are the words that the user typed before `--`.

    In a Slurm job, `environ` is all that the script has, and an srun is read as well.
    Ranks get the variables that the script set, and those of the launcher over them, as from the launcher itself.
    """
    if (starter := capture.argv[0]) in _STARTERS:
        command_line = escape_text(quote_command_line(mask_words(capture.argv)), _LONGEST_COMMAND)
        seen = f"{command_line} would start ranks by itself, where Aboard can't replace a launcher"
        raise InputError.of(captured_scripts.ESCAPED, capture.node, seen, "starter", starter=starter)
    devices = [f"{VISIBLE}={capture.env[VISIBLE]}"] if VISIBLE in capture.env else []
    command = parse_launcher_command(
        [*devices, *capture.argv],
        files,
        environ=capture.env if environ is None else environ,
        cwd=capture.cwd,
        launch=launch,
    )
    known = _LAUNCHERS if environ is None else _LAUNCHERS | {SRUN}
    if command is None or command.launcher not in known:
        seen = f"'{escape_text(' '.join(capture.argv[:3]))}' is not a launcher that Aboard reads"
        raise InputError.of(captured_scripts.UNUSABLE, capture.node, seen, "launcher")
    env = {name: value for name, value in capture.env.items() if name != VISIBLE and _is_for_ranks(name)}
    removed = [name for name in capture.removed if _is_for_ranks(name) and name not in {*command.env, *_NODE_DEFAULTS}]
    limits = [f"ulimit -S -{name} {_format_limit(limit)}" for name, limit in sorted(capture.limits.items())]
    notes = command.notes
    if _sends_variables(command):
        left_out = sorted(env.keys() - command.env.keys())
        env, removed, limits = {}, [], []
        if left_out:
            notes = (*notes, f"deepspeed doesn't send {format_list(left_out)} to ranks: list them in .deepspeed_env.")
    return drop_outside_variables(
        replace(
            command,
            request=replace(command.request, env={**env, **command.env}),
            hostfile=command.hostfile and _locate(command.hostfile, capture.cwd),
            setup=(*((f"unset {' '.join(removed)}",) if removed else ()), *limits, *command.setup),
            workdir=_locate(command.workdir or ".", capture.cwd),
            python="" if command.container is not None else capture.python,
            notes=notes,
        )
    )


def _format_limit(limit: int) -> str:
    return "unlimited" if limit < 0 else str(limit)


def _locate(path: str, cwd: str) -> str:
    return path if path.startswith("~") else posixpath.normpath(posixpath.join(cwd, path))


def _is_for_ranks(name: str) -> bool:
    """Whether ranks get a script's variable: not those that Aboard sets for each of them."""
    return name not in _OWN_VARIABLES and not name.startswith(("ABOARD_", *_SLURMS_OWN))


def _sends_variables(command: LauncherCommand) -> bool:
    """Whether the launcher starts ranks over ssh, with the variables that DeepSpeed exports and no others."""
    return (
        not command.per_node
        and command.launcher != SRUN
        and (command.launcher != DEEPSPEED or command.hostfile is not None)
    )
