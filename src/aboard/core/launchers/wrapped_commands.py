"""Refuses commands that wrap or generate a launcher's command, each with what to type instead.

Launched unchanged, they would run on every rank, and each would start a whole run of its own.
"""

import re
import shlex
from collections.abc import Sequence

from aboard.diagnoses import Fix, InputError, Problem, Shell
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands

_STARTERS = frozenset({"mpirun", "mpiexec", "pdsh", "clush", "ssh", "sudo"})
_SHELL_SCRIPT = re.compile(r".*\.(sh|bash|sbatch|slurm)")
# gpt-neox writes hundreds of derived values into the command that deepy.py passes to DeepSpeed; only its own code can
# build the command, and it prints other lines first.
_DEEPY = (
    "import shlex; from megatron.neox_arguments import NeoXArgs; "
    "print(shlex.join(NeoXArgs.consume_deepy_args().get_deepspeed_main_args()))"
)


def refuse_wrapped_command(words: Sequence[str], launchers: frozenset[str]) -> None:
    """Raises if the command isn't a launcher's but would start one on every rank."""
    first = _get_base_name(words[0])
    launcher_at = next((index for index, word in enumerate(words) if index and _get_base_name(word) in launchers), None)
    if first in _STARTERS and launcher_at is not None:
        launcher = _get_base_name(words[launcher_at])
        seen = f"{first} starts {launcher} on each node, and Aboard does that itself"
        fix = pasted_commands.WRAPPED.fix(
            "starter", starter=first, command=pasted_commands.quote_command_line(words[launcher_at:])
        )
        raise _build_refusal(first, seen, fix)
    script = next((index for index, word in enumerate(words[:3]) if _get_base_name(word) == "deepy.py"), None)
    if script is not None:
        seen = "deepy.py builds a deepspeed command from its config files with gpt-neox code, and starts it"
        printed = pasted_commands.quote_last_line(
            pasted_commands.quote_command_line(["python", "-c", _DEEPY, *words[script + 1 :]])
        )
        fix = pasted_commands.WRAPPED.fix("deepy", printed=printed)
        raise _build_refusal("deepy.py", seen, fix)
    option_at = next((index for index, word in enumerate(words) if word.startswith("--deepspeed_args")), None)
    if option_at is not None and any(_SHELL_SCRIPT.fullmatch(word) for word in words[:2]):
        _, equals, attached = words[option_at].partition("=")
        flag_text = attached if equals else " ".join(words[option_at + 1 : option_at + 2])
        seen = f"{escape_text(words[0])} starts deepspeed itself, so every rank would start its own run"
        fix = pasted_commands.WRAPPED.fix("script", flags=_quote_flags(flag_text))
        raise _build_refusal(_get_base_name(words[0]), seen, fix)


def _quote_flags(text: str) -> Shell:
    """The words that a shell script would make of the text, quoted again; other shell syntax has no effect."""
    try:
        return pasted_commands.quote_command_line(shlex.split(text))
    except ValueError:  # an unclosed quote
        return pasted_commands.quote_command_line(text.split())


def _build_refusal(where: str, seen: str, fix: Fix) -> InputError:
    return InputError(pasted_commands.WRAPPED, [Problem(where=where, seen=seen, fix=fix)])


def _get_base_name(word: str) -> str:
    return word.rpartition("/")[2]
