"""Parses DeepSpeed's hostfile as DeepSpeed does, with node sets allowed in the host column.

DeepSpeed (launcher/runner.py) strips each line and skips it if it is empty or starts with `#`. Any other line must be
a word, white space and `slots=` with digits. Text after the digits is ignored, so `w0 slots=8 # rack 3` and MPI's `w0
slots=8 max_slots=8` both mean 8 slots. A repeated host, any other line, and a file without hosts are errors. `slots=0`
means zero.
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
_BRACKETS = re.compile(r"\[[^\[\]]*\]")
# Describing a million wrong lines takes a minute, and nobody reads them.
MAX_PROBLEMS = 100
# Of a line that can't be read.
_MAX_LINE = 2_000
# The line ends of Python's text files: fewer than those of str.splitlines.
_LINE_END = re.compile(r"\r\n|\r|\n")


def parse_hostfile(text: str, *, where: str = "hostfile") -> tuple[Node, ...]:
    """The nodes of a hostfile in its order; reports every wrong line up to a limit, with the line to write instead."""
    nodes: dict[str, Node] = {}
    lines: dict[str, int] = {}
    problems: list[Problem] = []
    for number, line in _list_entries(text):
        if len(problems) >= MAX_PROBLEMS:
            break
        location = f"{where}:{number}"
        try:
            logins, slots = _parse_entry(line, location)
        except InputError as error:
            problems += error.problems
            continue
        if len(nodes) + len(logins) > MAX_NAMES:
            seen = f"the hostfile lists more than {MAX_NAMES:,} hosts"
            problems.append(Problem(where=location, seen=seen, fix=configuration.HOSTFILE.fix("fewer")))
            break
        duplicates = []
        for login in logins:
            if login.name in nodes:
                duplicates.append(login.name)
                continue
            nodes[login.name] = Node(name=login.name, user=login.user, slots=slots)
            lines[login.name] = number
        if duplicates:
            names = fold_names(duplicates)
            seen = f"{names} is already on line {lines[duplicates[0]]}"
            problems.append(Problem(where=location, seen=seen, fix=configuration.HOSTFILE.fix("twice", hosts=names)))
    if not nodes and not problems:
        fix = configuration.HOSTFILE.fix("empty")
        problems.append(Problem(where=where, seen="the hostfile lists no hosts", fix=fix))
    if problems:
        raise InputError(configuration.HOSTFILE, problems)
    return tuple(nodes.values())


def _list_entries(text: str) -> "Iterator[tuple[int, str]]":
    for number, line in enumerate(_LINE_END.split(text), start=1):
        entry = line.strip()
        if entry and not entry.startswith("#"):
            yield number, entry


def _parse_entry(line: str, location: str) -> tuple[tuple[Login, ...], int]:
    match = _ENTRY.match(line)
    if not match:
        raise _build_line_error(line, location)
    digits = match[2].lstrip("0") or "0"
    if len(digits) > _MAX_SLOT_DIGITS or int(digits) > MAX_SLOTS:
        seen = f"{escape_text(match[1])} has slots={escape_text(match[2], 20)}; {MAX_SLOTS:,} is the maximum for a node"
        raise InputError.of(configuration.HOSTFILE, location, seen, "line", host=match[1], slots=8)
    return expand_logins(match[1], where=location), int(digits)


def _build_line_error(line: str, location: str) -> InputError:
    # A blank inside brackets cuts the host column short; without the blank, the line may be correct.
    host, *rest = _BRACKETS.sub(lambda match: "".join(match[0].split()), line[:_MAX_LINE]).split()
    number = re.search(r"[0-9]+", " ".join(rest))
    slots = number[0][:_MAX_SLOT_DIGITS] if number else "8"
    seen = f"'{escape_text(line)}' has no slots=N" if not rest else f"can't read '{escape_text(line)}'"
    return InputError.of(configuration.HOSTFILE, location, seen, "line", host=host, slots=slots)
