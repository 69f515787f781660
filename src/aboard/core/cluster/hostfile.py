"""DeepSpeed's hostfile, read as DeepSpeed reads it, with node sets allowed in the host column.

DeepSpeed (launcher/runner.py) strips a line, skips it when it is empty or starts with `#`, and else asks for a word,
white space and `slots=` with digits; what follows the digits is not looked at, so `w0 slots=8 # rack 3` and MPI's
`w0 slots=8 max_slots=8` are both 8 slots. A host that comes twice, any other line, and a file without hosts are
errors. `slots=0` is read as zero.
"""

import re
from typing import TYPE_CHECKING

from aboard.core.cluster.node import Node
from aboard.core.cluster.node_sets import MAX_NAMES, Login, expand_logins, fold_names
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import configuration

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SLOTS = 65_536

_ENTRY = re.compile(r"(\S+)\s+slots=(\d+)")
_MAX_SLOT_DIGITS = 5
_BRACKETS = re.compile(r"\[[^\]]*\]")
# What Python's text files take for the end of a line, which is less than str.splitlines does.
_LINE_END = re.compile(r"\r\n|\r|\n")


def parse_hostfile(text: str, *, where: str = "hostfile") -> tuple[Node, ...]:
    """The nodes of a hostfile in its order; every wrong line is reported, with the line to write instead."""
    nodes: dict[str, Node] = {}
    lines: dict[str, int] = {}
    problems: list[Problem] = []
    for number, line in _list_entries(text):
        place = f"{where}:{number}"
        try:
            logins, slots = _parse_entry(line, place)
        except InputError as error:
            problems += error.problems
            continue
        if len(nodes) + len(logins) > MAX_NAMES:
            problems.append(
                Problem(where=place, seen=f"more than {MAX_NAMES:,} hosts", fix=configuration.HOSTFILE.fix("fewer"))
            )
            break
        twins = []
        for login in logins:
            if login.name in nodes:
                twins.append(login.name)
                continue
            nodes[login.name] = Node(name=login.name, user=login.user, slots=slots)
            lines[login.name] = number
        if twins:
            problems.append(_build_duplicate_problem(fold_names(twins), place, lines[twins[0]]))
    if not nodes and not problems:
        problems.append(
            Problem(where=where, seen="the hostfile lists no hosts", fix=configuration.HOSTFILE.fix("empty"))
        )
    if problems:
        raise InputError(configuration.HOSTFILE, problems)
    return tuple(nodes.values())


def _list_entries(text: str) -> "Iterator[tuple[int, str]]":
    for number, line in enumerate(_LINE_END.split(text), start=1):
        entry = line.strip()
        if entry and not entry.startswith("#"):
            yield number, entry


def _parse_entry(line: str, place: str) -> tuple[tuple[Login, ...], int]:
    match = _ENTRY.match(line)
    if not match:
        raise InputError(configuration.HOSTFILE, [_build_line_problem(line, place)])
    digits = match[2].lstrip("0") or "0"
    if len(digits) > _MAX_SLOT_DIGITS or int(digits) > MAX_SLOTS:
        seen = f"{escape_text(match[1])} has slots={escape_text(match[2], 20)}; {MAX_SLOTS:,} is the maximum for a node"
        raise InputError(
            configuration.HOSTFILE,
            [Problem(where=place, seen=seen, fix=configuration.HOSTFILE.fix("line", host=match[1], slots=8))],
        )
    return expand_logins(match[1], where=place), int(digits)


def _build_line_problem(line: str, place: str) -> Problem:
    # A blank inside brackets cuts the host column short; without it the line may well be right.
    host, *rest = _BRACKETS.sub(lambda match: "".join(match[0].split()), line).split()
    number = re.search(r"[0-9]+", " ".join(rest))
    slots = number[0][:_MAX_SLOT_DIGITS] if number else "8"
    seen = f"'{escape_text(line)}' has no slots=N" if not rest else f"can't read '{escape_text(line)}'"
    return Problem(where=place, seen=seen, fix=configuration.HOSTFILE.fix("line", host=host, slots=slots))


def _build_duplicate_problem(name: str, place: str, first: int) -> Problem:
    return Problem(
        where=place, seen=f"{name} is already on line {first}", fix=configuration.HOSTFILE.fix("twice", hosts=name)
    )
