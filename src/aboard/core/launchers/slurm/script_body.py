"""What the lines of a batch script seem to do that its job would refuse: said before the job waits in the queue."""

import re
from collections.abc import Iterator

from aboard.core.launchers.slurm.srun import PLUGIN_FLAGS
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands

_START = r"\s*(?:(?:then|do|else|if|time|exec)\s+|\w+=\S*\s+)*"
_LAUNCHER = r"(?:torchrun|deepspeed|accelerate\s+launch|python[0-9.]*\s+-m\s+torch\.distributed\.\w+)\b"
# The patterns take quadratic time.
_LONGEST = 2000
_PLUGIN = re.compile("|".join(rf"{name}\b" for flag in PLUGIN_FLAGS for name in flag.names))
_NOTES = {
    rf"{_START}{_LAUNCHER}.*\s--(?:nnodes|num[_-]machines)[ =]?(?!\"?1\b)\S": "seems to start a launcher of several"
    " nodes without srun, on the first node only, which Aboard refuses when it happens: write srun before it",
    rf"{_START}(?:ssh|pdsh|clush|mpirun|mpiexec)\s.*(?:{_LAUNCHER}|\bpython)": "seems to start ranks without srun,"
    " which Aboard refuses when it happens: write srun torchrun once, for all nodes",
    r".*\bray\s+start\b": "seems to start Ray, whose processes Aboard does not monitor",
    rf"{_START}trap\s.*\s(?:SIG)?USR[12]\b": "seems to trap a notice of the time limit, which Aboard gets"
    " instead: it stops the ranks, and the trap does not run",
    r".*\s--het-group": "seems to use a part of a heterogeneous job, which Aboard refuses when it happens",
}
_SRUN = re.compile(r"\bsrun\s")


def list_body_notes(text: str, script: str) -> tuple[str, ...]:
    """One note of each kind, on its first line; raises for an srun with a flag of pyxis, which no job could obey."""
    notes: dict[str, str] = {}
    for number, line in _join_lines(text):
        srun = _SRUN.search(line)
        found = _PLUGIN.search(line, srun.end()) if srun else None
        words = next((words for pattern, words in _NOTES.items() if re.match(pattern, line)), "") if line else ""
        if not found and not words:
            continue
        where = f"{escape_text(script)}, line {number}"
        if found:
            fix = pasted_commands.FLAG.fix("container", flag=found[0])
            seen = f"srun {found[0]} starts a container of the plug-in pyxis, which Aboard doesn't do"
            raise InputError(pasted_commands.FLAG, [Problem(where=where, seen=seen, fix=fix)])
        notes.setdefault(words, where)
    return tuple(f"{where} {words}." for words, where in notes.items())


def _join_lines(text: str) -> Iterator[tuple[int, str]]:
    """Commands on one line each, without comments, and without what an srun has between quotes over several lines."""
    inside, number = "", 1
    for lines in re.split(r"(?<!\\)\n", text):
        command = lines.replace("\\\n", " ")[:_LONGEST]
        if inside:
            inside = "" if inside in command else inside
        elif not command.lstrip().startswith("#"):
            yield number, command
            inside = next((quote for quote in "'\"" if "srun" in command and command.count(quote) % 2), "")
        number += lines.count("\n") + 1
