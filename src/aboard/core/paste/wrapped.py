"""Commands that only hold a launcher's command, or make one: refused, each with what to type instead.

Started as they are, they would run once on every rank, and each would start a whole run of its own.
"""

import re
import shlex
from collections.abc import Sequence

from aboard.core.words import visible
from aboard.diagnoses import Fix, InputError, Problem, Shell, paste

_STARTERS = frozenset({"srun", "mpirun", "mpiexec", "pdsh", "clush", "ssh"})
_CONTAINERS = frozenset({"singularity", "apptainer", "docker", "podman"})
_SHELL_SCRIPT = re.compile(r".*\.(sh|bash|sbatch|slurm)")
# gpt-neox's own code writes hundreds of derived values into the command that deepy.py then gives to DeepSpeed; only
# that code can make the command, and it prints other lines before.
_DEEPY = (
    "import shlex; from megatron.neox_arguments import NeoXArgs; "
    "print(shlex.join(NeoXArgs.consume_deepy_args().get_deepspeed_main_args()))"
)


def refuse_wrapped(words: Sequence[str], launchers: frozenset[str]) -> None:
    """Raises if the command is none of a launcher's but would start one on every rank."""
    first = _base(words[0])
    held = next((place for place, word in enumerate(words) if place and _base(word) in launchers), None)
    if first == "sbatch":
        seen = "sbatch submits a script to Slurm, and Aboard can't read what that script starts"
        fix = paste.WRAPPED.fix("sbatch")
        raise _refusal(first, seen, fix)
    if first in _STARTERS | _CONTAINERS and held is not None:
        launcher = _base(words[held])
        box = next((place for place, word in enumerate(words[:held]) if _base(word) in _CONTAINERS), None)
        if box is not None:
            seen = f"{launcher} stands inside of a container, so every rank would start a run of its own"
            flags, program = _split_command(words[held + 1 :])
            bare = "--no-python" if launcher == "torchrun" else "--no_python"
            inside = [launcher, *flags, bare, *words[box:held], "python", *program]
            fix = paste.WRAPPED.fix("container", command=paste.command_line(inside))
        else:
            seen = f"{first} starts {launcher} on each node, and Aboard does that itself"
            fix = paste.WRAPPED.fix("starter", starter=first, command=paste.command_line(words[held:]))
        raise _refusal(first, seen, fix)
    script = next((place for place, word in enumerate(words[:3]) if _base(word) == "deepy.py"), None)
    if script is not None:
        seen = "deepy.py makes a deepspeed command from its config files by code of gpt-neox, and starts it"
        printed = paste.last_line(paste.command_line(["python", "-c", _DEEPY, *words[script + 1 :]]))
        fix = paste.WRAPPED.fix("deepy", printed=printed)
        raise _refusal("deepy.py", seen, fix)
    asked = next((place for place, word in enumerate(words) if word.startswith("--deepspeed_args")), None)
    if asked is not None and any(_SHELL_SCRIPT.fullmatch(word) for word in words[:2]):
        _, equals, attached = words[asked].partition("=")
        given = attached if equals else " ".join(words[asked + 1 : asked + 2])
        seen = f"{visible(words[0])} starts deepspeed by itself, so every rank would start a run of its own"
        fix = paste.WRAPPED.fix("script", flags=_flags(given))
        raise _refusal(_base(words[0]), seen, fix)


def _split_command(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """A launcher's own words, and what `python` runs behind them: its script or module, and the arguments of that."""
    for place, word in enumerate(words):
        if word in {"-m", "--module"}:
            return words[:place], ["-m", *words[place + 1 :]]
        if word.endswith(".py"):
            return words[:place], words[place:]
    return words, ["…"]


def _flags(text: str) -> Shell:
    """The words that a script would make of it, quoted again: the rest of a shell's syntax in it has no effect."""
    try:
        return paste.command_line(shlex.split(text))
    except ValueError:  # a quote that is never closed
        return paste.command_line(text.split())


def _refusal(where: str, seen: str, fix: Fix) -> InputError:
    return InputError(paste.WRAPPED, [Problem(where=where, seen=seen, fix=fix)])


def _base(word: str) -> str:
    return word.rpartition("/")[2]
