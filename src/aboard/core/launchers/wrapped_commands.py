"""Refuses commands that start a launcher on each node, with what to type instead.

Launched unchanged, they would run on every rank, and each would start a whole run of its own.
"""

from collections.abc import Sequence

from aboard.diagnoses import Fix, InputError, Problem
from aboard.diagnoses.usage import pasted_commands

_STARTERS = frozenset({"mpirun", "mpiexec", "pdsh", "clush", "ssh", "sudo"})


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


def _build_refusal(where: str, seen: str, fix: Fix) -> InputError:
    return InputError(pasted_commands.WRAPPED, [Problem(where=where, seen=seen, fix=fix)])


def _get_base_name(word: str) -> str:
    return word.rpartition("/")[2]
