"""Refuses commands that would start a launcher in each rank, with what to type instead.

Launched unchanged, they would run on every rank, and each would start a whole run of its own.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from aboard.core.launchers.containers.container_fields import RUNTIMES
from aboard.core.launchers.launcher_command import LauncherContext
from aboard.diagnoses import Fix, InputError, Problem
from aboard.diagnoses.usage.pasted_commands import WRAPPED, quote_command_line
from aboard.lazy_dataclass import dataclass

# They start what follows on each node, whatever it is.
STARTERS = frozenset({"pdsh", "clush", "ssh", "sudo"})
# Launchers that Aboard doesn't read, with the fix.
_OTHER_LAUNCHERS: Mapping[str, str] = {
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"), "mpi"),
    **dict.fromkeys(("composer", "torchx"), "torchrun"),
    **dict.fromkeys(("ray", "horovodrun"), "other"),
}
# Some of them have commands that start no ranks, such as `ray status`.
_STARTING_WORDS: Mapping[str, frozenset[str]] = {
    "torchx": frozenset({"run"}),
    "ray": frozenset({"start", "up", "submit", "job", "exec"}),
}
_PER_SLOT = ("torchrun", "--nproc-per-node", "gpu")
_DEEPY = "deepy.py"
# Programs that choose a launcher and start it, with their commands that do so; None for programs that always do.
_FRONT_ENDS: Mapping[str, frozenset[str] | None] = {
    "axolotl": frozenset({"train", "evaluate"}),
    "llamafactory-cli": frozenset({"train"}),
    "lmf": frozenset({"train"}),
    "swift": frozenset({"sft", "pt", "rlhf"}),
    "trl": frozenset({"sft", "dpo", "grpo", "kto", "reward", "rloo"}),
    "tune": frozenset({"run"}),
    "colossalai": frozenset({"run"}),
    _DEEPY: None,
}
_MODULES = {"axolotl.cli.main": "axolotl", "llamafactory.cli": "llamafactory-cli", "swift.cli.main": "swift"}
_MODULES |= {"trl.cli": "trl"}


@dataclass(frozen=True, kw_only=True)
class _Wrapper:
    """A program that runs the command behind its own options.

    `valued` options are followed by a value; `words` other words come before the command. `subcommand` must be the
    first word. `fix` names the way out.
    """

    valued: frozenset[str] = frozenset()
    words: int = 0
    subcommand: str = ""
    fix: str = "wrapper"


_ENVIRONMENT = frozenset({"-n", "--name", "-p", "--prefix", "--cwd", "--with", "--python", "--directory", "--project"})
_ENVIRONMENT |= {"--extra", "--group", "--env-file", "--package", "--with-requirements", "--with-editable", "-E", "-C"}
_NUMA = frozenset({"-i", "-p", "-P", "-m", "-N", "-C", "-w", "--interleave", "--preferred", "--membind"})
_NUMA |= {"--cpunodebind", "--physcpubind", "--weighted-interleave", "--preferred-many"}
_NSYS = frozenset({"-o", "-t", "-s", "-c", "-w", "-f", "-x", "-d", "-y", "-b", "-e", "-n", "-k", "-h", "--trace"})
_NSYS |= {"--output", "--sample", "--capture-range", "--force-overwrite", "--stats", "--duration", "--delay"}
ENVIRONMENT_MANAGERS = frozenset(
    {"uv", "conda", "mamba", "micromamba", "poetry", "pipenv", "pdm", "hatch", "rye", "pixi"}
)
_WRAPPERS: Mapping[str, _Wrapper] = {
    "nohup": _Wrapper(fix="nohup"),
    "setsid": _Wrapper(fix="nohup"),
    "time": _Wrapper(valued=frozenset({"-f", "--format", "-o", "--output"}), fix="before"),
    "timeout": _Wrapper(valued=frozenset({"-k", "--kill-after", "-s", "--signal"}), words=1, fix="before"),
    "numactl": _Wrapper(valued=_NUMA, fix="bind"),
    "taskset": _Wrapper(words=1, fix="bind"),
    "stdbuf": _Wrapper(valued=frozenset({"-i", "-o", "-e", "--input", "--output", "--error"})),
    "nice": _Wrapper(valued=frozenset({"-n", "--adjustment"})),
    "ionice": _Wrapper(valued=frozenset({"-c", "-n", "--class", "--classdata"})),
    "chrt": _Wrapper(words=1),
    "exec": _Wrapper(valued=frozenset({"-a"})),
    "command": _Wrapper(),
    "unbuffer": _Wrapper(),
    "env": _Wrapper(valued=frozenset({"-u", "--unset", "-C", "--chdir"})),
    "nsys": _Wrapper(valued=_NSYS, subcommand="profile", fix="profiler"),
    "ncu": _Wrapper(valued=_NSYS | {"--set", "--section", "--target-processes"}, fix="profiler"),
    "nvprof": _Wrapper(valued=_NSYS, fix="profiler"),
    "py-spy": _Wrapper(valued=_NSYS | {"-r", "--rate", "--format"}, subcommand="record", fix="profiler"),
    "strace": _Wrapper(valued=frozenset({"-e", "-o", "-s", "-p", "-P"}), fix="profiler"),
    **{name: _Wrapper(valued=_ENVIRONMENT, subcommand="run", fix="before") for name in ENVIRONMENT_MANAGERS},
}
# They run what follows, or a quoted command, outside of the rank or several times, with the fix.
_SESSIONS: Mapping[str, str] = {
    **dict.fromkeys(("tmux", "screen", "dtach", "at", "batch", "systemd-run"), "nohup"),
    **dict.fromkeys(("script", "parallel", "xargs"), "wrapper"),
}
_MOST_WORDS, _LONGEST_TEXT = 100, 10_000
_EXPANDED = re.compile(r"[;&|<>(){}$`*?\n]")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PYTHON = re.compile(r"python[0-9.]*")
_SEPARATORS = re.compile(r"[;&|\n(){}]")
_LAUNCHERS = frozenset({"torchrun", "deepspeed", "ds", "accelerate", "accelerate-launch"})
SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
_COMMAND_FLAGS = frozenset({"-c", "-lc", "-ec", "-xc", "-exc"})
_PARAMETER = re.compile(r'"?\$\{?(\w+|[@*])\}?"?')
_KEYWORD = re.compile(r"\s*(?:(?:then|do|else|if|while|!)\s+)*")
_LAUNCH_MODULE = re.compile(r"-m\s+(?:torch\.distributed\.(?:run|launch)|accelerate\.commands|deepspeed\.launcher)\b")
_TORCH_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands", "deepspeed.launcher")


def refuse_wrapped_command(
    words: Sequence[str], before: Mapping[str, str], context: LauncherContext, launchers: frozenset[str]
) -> None:
    """Raises if the command isn't a launcher's but would start one on every rank; `before` are its variables."""
    first = get_base_name(words[0])
    set_before = [f"{name}={value}" for name, value in before.items()]
    launcher_at = next((index for index, word in enumerate(words) if index and get_base_name(word) in launchers), None)
    if (first in STARTERS or _OTHER_LAUNCHERS.get(first) == "mpi") and launcher_at is not None:
        launcher = get_base_name(words[launcher_at])
        seen = f"{first} starts {launcher} on each node, and Aboard does that itself"
        raise build_starter_refusal(first, words[launcher_at:], seen, context.launch)
    if first in _SESSIONS and ("/" not in words[0] or words[0].startswith("/")):
        _refuse_session(words, set_before, context, launchers)
    # Only in a container: elsewhere, they run until they call a launcher.
    front_end = find_front_end(words)
    if front_end or (hidden := find_text_launcher(find_command_text(words) or "")):
        seen = f"{first} would start {front_end or hidden} in every rank, and each would start a run of its own"
        raise _build_refusal(first, seen, WRAPPED.fix("front-end", name=front_end or first))
    _refuse_other_launcher(words, set_before, context)
    inner = strip_wrapper(words)
    if inner and _starts_launcher(inner, context):
        started = get_base_name(inner[_find_program(inner)])
        seen = f"{first} would start {started} in every rank, and each would start a run of its own"
        raise build_wrapper_refusal(words, inner, set_before, seen, context.launch)


def build_starter_refusal(starter: str, command: Sequence[str], seen: str, launch: Sequence[str]) -> InputError:
    """The refusal of sudo, ssh or the like around a command; `launch` are the words that were typed before `--`."""
    fix = _fill_fix(launch, "starter", starter=starter, command=quote_command_line(command))
    return _build_refusal(starter, seen, fix)


def build_wrapper_refusal(
    words: Sequence[str], inner: Sequence[str], before: Sequence[str], seen: str, launch: Sequence[str]
) -> InputError:
    """The refusal of a wrapper around the `inner` command, with what to type instead; `before` come before that."""
    name = get_base_name(words[0])
    command, variant = quote_command_line([*before, *inner]), _WRAPPERS[name].fix
    wrapper = quote_command_line(words[: len(words) - len(inner)]) if variant == "before" else name
    return _build_refusal(name, seen, _fill_fix(launch, variant, wrapper=wrapper, command=command))


def find_front_end(words: Sequence[str]) -> str:
    """The name of the front end that the command is; "" for any other program."""
    is_module, program = split_python(words)
    name, *rest = program or [""]
    name = _MODULES.get(name, "") if is_module else get_base_name(name)
    if len(program) < len(words) and not is_module and name != _DEEPY:
        return ""
    commands = _FRONT_ENDS.get(name, frozenset())
    return name if commands is None or "".join(rest[:1]) in commands else ""


def split_python(words: Sequence[str]) -> tuple[bool, Sequence[str]]:
    """Whether Python runs a module, and the words from it or from a script on; all words of another program."""
    at = 0
    if _PYTHON.fullmatch(get_base_name(words[0])):
        at = 1
        while at < len(words) and words[at].startswith("-") and words[at] != "-m":
            at += 2 if words[at] in {"-W", "-X"} else 1
    is_module = at > 0 and words[at : at + 1] in (["-m"], ("-m",))
    return is_module, words[at + is_module :]


def may_be_refused(name: str) -> bool:
    """Whether `refuse_wrapped_command` looks at commands of the program."""
    return name in STARTERS or name in _OTHER_LAUNCHERS or name in _SESSIONS or name in _WRAPPERS


def _refuse_session(
    words: Sequence[str], set_before: Sequence[str], context: LauncherContext, launchers: frozenset[str]
) -> None:
    """Raises if a launcher follows anywhere: the rank would end at once, or start a run of its own."""
    name = get_base_name(words[0])
    for index, word in enumerate(words[1:_MOST_WORDS], start=1):
        is_text = " " in word.strip()
        if word.endswith(".py") and not is_text:
            return  # what follows are arguments of a script
        inner = _split_text(word) if is_text else words[index:]
        lines = _SEPARATORS.split(word[:_LONGEST_TEXT]) if is_text else [" ".join(inner[:_MOST_WORDS])]
        launcher = next(filter(None, (_find_started(line.split(), launchers) for line in lines)), "")
        if not launcher or words[index - 1] in {"-p", "--property"}:
            continue
        seen = f"{name} would start {launcher} by itself in every rank, and Aboard would not see its ranks"
        if not inner or "{}" in inner or (is_text and _EXPANDED.search(word)):
            raise _build_refusal(name, seen, WRAPPED.fix("text", name=launcher))
        if _starts_launcher(inner, context):
            command = quote_command_line([*set_before, *(inner[: inner.index(":::")] if ":::" in inner else inner)])
            raise _build_refusal(name, seen, _fill_fix(context.launch, _SESSIONS[name], wrapper=name, command=command))


def _split_text(text: str) -> Sequence[str]:
    """The words of a quoted command; empty if they can't be told."""
    try:
        return shlex.split(text) if len(text) <= _LONGEST_TEXT else ()
    except ValueError:
        return ()


def _find_started(words: Sequence[str], launchers: frozenset[str]) -> str:
    """The launcher or front end that a command starts, behind assignments and wrappers.

    A container counts with a launcher in it; a launcher with something to start.
    """
    words = words[_find_program(words) :][:_MOST_WORDS]
    if len(words) < 2:  # noqa: PLR2004 - a launcher and what it starts
        return ""
    name, *rest = map(get_base_name, words)
    if name in RUNTIMES:
        return name if launchers.intersection(rest) else ""
    is_module, program = split_python(words)
    is_launcher = is_module and any(word.startswith(_TORCH_MODULES) for word in program[:1])
    if is_launcher or name in launchers or name in _OTHER_LAUNCHERS or find_front_end(words):
        return name
    return _find_started(strip_wrapper(words), launchers)


def _refuse_other_launcher(words: Sequence[str], set_before: Sequence[str], context: LauncherContext) -> None:
    name = get_base_name(words[0])
    fix = _OTHER_LAUNCHERS.get(name)
    starting = _STARTING_WORDS.get(name)
    if fix is None or (starting is not None and not starting.intersection(words[1:2])):
        return
    seen = f"Aboard doesn't read {name}'s command: every rank would run it, and start a run of its own"
    script = next((index for index, word in enumerate(words) if word.endswith(".py")), None)
    if fix == "other" or script is None:
        raise _build_refusal(name, seen, WRAPPED.fix("other", name=name))
    ranks = () if fix == "mpi" else _PER_SLOT
    command = quote_command_line([*set_before, *ranks, *words[script:]])
    raise _build_refusal(name, seen, _fill_fix(context.launch, fix, name=name, command=command))


def find_command_text(words: Sequence[str]) -> str | None:
    """The text of `bash -c TEXT`; None for another command."""
    is_shell = get_base_name(words[0]) in SHELLS
    return words[2] if is_shell and words[2:] and words[1] in _COMMAND_FLAGS else None


def find_script(words: Sequence[str]) -> str | None:
    """The shell script that the words run; None for other commands, such as `bash -c TEXT`."""
    if find_command_text(words) is not None:
        return None
    is_shell = get_base_name(words[0]) in SHELLS
    script = next((word for word in words[1:] if not word.startswith("-")), None) if is_shell else words[0]
    return script if script is not None and (is_shell or script.endswith((".sh", ".bash"))) else None


def read_script(words: Sequence[str], read: Callable[[str], str | None], environ: Mapping[str, str]) -> str:
    """The text of `bash -c TEXT`, or of the shell script that the words run; "" for other commands.

    Arguments (`$@`) and variables of `environ` are put in, so that `exec "$@"` and `$LAUNCHER` show what they start.
    """
    text, script = find_command_text(words), find_script(words)
    if text is None:
        text = (read(script) if script else None) or ""
    arguments = words[words.index(script) + 1 :] if script else words[4:]
    # They may be a shell's command as well.
    inner = read_script(arguments, read, environ) if arguments else ""
    started = inner or " ".join(arguments)
    given = {**environ, "@": started, "*": started}
    return _PARAMETER.sub(lambda found: given.get(found[1], found[0]), text)


def find_text_launcher(text: str) -> str:
    """The launcher, front end or container with a launcher that a shell's text starts; "" if none."""
    text = text.replace("\\\n", " ")
    for part in _SEPARATORS.split(text):
        words = _KEYWORD.sub("", part, count=1).split()
        if name := _find_started(words, _LAUNCHERS):
            return name
    found = _LAUNCH_MODULE.search(text)
    return "" if found is None else found[0].split()[1]


def strip_wrapper(words: Sequence[str]) -> Sequence[str]:
    """The command that a wrapper runs; empty for any other program."""
    wrapper = _WRAPPERS.get(get_base_name(words[0]))
    if wrapper is None:
        return ()
    rest = list(words[1:])
    if wrapper.subcommand:
        if rest[:1] != [wrapper.subcommand]:
            return ()
        rest.pop(0)
    others = wrapper.words
    while rest:
        word = rest[0]
        if word == "--":
            return rest[1:]
        if word.startswith("-") and len(word) > 1:
            del rest[: 2 if word in wrapper.valued else 1]
        elif others:
            others -= 1
            rest.pop(0)
        else:
            break
    return rest


def _starts_launcher(words: Sequence[str], context: LauncherContext) -> bool:
    """Whether the command is a launcher's; raises for a wrapper around one, whose fix is the innermost command."""
    if find_front_end(words[_find_program(words) :]):
        return True
    try:
        return context.parse_inner(words, context) is not None
    except InputError as error:
        if error.code == WRAPPED.code:
            raise
        return True  # a launcher with a wrong flag, which is reported once its command is typed


def _find_program(words: Sequence[str]) -> int:
    """Where the program is after variables."""
    return next((index for index, word in enumerate(words) if not _ASSIGNMENT.match(word)), 0)


def _fill_fix(launch: Sequence[str], variant: str, **values: str) -> Fix:
    """The fix with what the user typed before `--`, and the option that replaces the wrapper."""
    option = {"nohup": ("-d", "--detach"), "bind": ("--bind",)}.get(variant, ())
    more = () if set(option) & set(launch) else option[:1]
    return WRAPPED.fix(variant, launch=quote_command_line([*launch, *more]), **values)


def _build_refusal(where: str, seen: str, fix: Fix) -> InputError:
    return InputError(WRAPPED, [Problem(where=where, seen=seen, fix=fix)])


def get_base_name(word: str) -> str:
    return word.rpartition("/")[2]
