"""Expands node sets (`gpu[01-16,20]`, `r[1-2]n[01-04]`, `a,b[1-3]`) into names, and folds names back into them.

A range keeps the width of its first number: `[08-11]` is 08 09 10 11, `[8-11]` is 8 9 10 11.
"""

import re
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from aboard.core.text.input_text import find_host_error, find_user_error, format_count, point_at_column
from aboard.diagnoses import Fix, InputError, Problem, Shell, format_shell
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import configuration
from aboard.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_NAMES = 65_536
MAX_DIGITS = 18

# Node sets that need no shell quotes.
_SAFE = re.compile(r"[\w.:@\[][\w.:@,\[\]-]*", re.ASCII)
_ITEM = re.compile(r"(?:\[[^\]]*(?:\]|$)|[^\s,\[])+")
_PART = re.compile(r"\[(?P<ranges>[^\]]*)\]|(?P<literal>[^\[\]]+)|(?P<stray>[\[\]]).*", re.DOTALL)
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_OPEN_RANGE = re.compile(rf"([0-9]{{1,{MAX_DIGITS}}})-$")
_NAME_AND_NUMBER = re.compile(r"([^:]+):([0-9]+)")
SSH_PORT = 22
# In `name:N`, a number with more digits than this is a port, not a number of slots.
_SLOT_DIGITS = 3
_NUMBERED = re.compile(rf"(.*?)([0-9]{{1,{MAX_DIGITS}}})([^0-9]*)")


@dataclass(frozen=True, kw_only=True)
class Login:
    """A host name, with its user if written as `user@host`."""

    name: str
    user: str | None = None


def expand_node_set(text: str, *, where: str = "node set") -> tuple[str, ...]:
    """The names in a node set, in the order written; repeated names stay repeated."""
    logins = expand_logins(text, where=where)
    if any(login.user is not None for login in logins):
        seen = f"a user name is not allowed here\n{point_at_column(text, text.index('@'))}"
        raise InputError.of(configuration.NODESET, where, seen, "no-user")
    return tuple(login.name for login in logins)


def expand_logins(text: str, *, where: str = "node set") -> tuple[Login, ...]:
    """Like `expand_node_set`, for sets with users: `alice@gpu[01-04]`."""
    logins: list[Login] = []
    problems: list[Problem] = []
    for item in _ITEM.finditer(text):
        try:
            logins += _expand_item(item.group(), item.start(), text, MAX_NAMES - len(logins))
        except _Trouble as trouble:
            seen = f"{trouble.seen}\n{point_at_column(text, trouble.column)}"
            problems.append(Problem(where=where, seen=seen, fix=trouble.fix))
    if not logins and not problems:
        problems.append(Problem(where=where, seen="no node was given", fix=configuration.NODESET.fix("none")))
    if problems:
        raise InputError(configuration.NODESET, problems)
    return tuple(logins)


def split_node_set(text: str) -> list[str]:
    """The members of a node set, with their brackets: `a,b[1,3]` is `a` and `b[1,3]`."""
    return _ITEM.findall(text)


def fold_names(names: "Iterable[str]") -> str:
    """Folds a list of names, in its order: `n[1-3,7]`."""
    groups: list[tuple[str, str, list[str]]] = []
    for name in names:
        match = _NUMBERED.fullmatch(name)
        prefix, digits, suffix = match.groups() if match else (name, "", "")
        if groups and digits and groups[-1][2][0] and groups[-1][:2] == (prefix, suffix):
            groups[-1][2].append(digits)
        else:
            groups.append((prefix, suffix, [digits]))
    return ",".join(_fold_group(*group) for group in groups)


def quote_folded_names(names: "Iterable[str]") -> Shell:
    """The names as `n[1-3]`, for a command or its comment; quoted if one of them is not a valid host name."""
    text = fold_names(names)
    return Shell(text) if _SAFE.fullmatch(text) else format_shell("{names}", names=text)


class _Trouble(Exception):
    """Internal to this file: expand_logins turns it into a Problem."""

    def __init__(self, column: int, seen: str, fix: Fix) -> None:
        super().__init__(seen)
        self.column, self.seen, self.fix = column, seen, fix


def _build_count_trouble(column: int) -> _Trouble:
    return _Trouble(column, f"more than {MAX_NAMES:,} names", configuration.NODESET.fix("fewer", most=f"{MAX_NAMES:,}"))


def _expand_item(item: str, start: int, text: str, room: int) -> "Iterator[Login]":
    user, at, hosts = item.rpartition("@")
    if at and (trouble := find_user_error(user)):
        raise _Trouble(start, trouble, configuration.NODESET.fix("user", hosts=hosts))
    parts = list(_expand_parts(hosts, start + len(user) + len(at), room))
    if prod(map(len, parts)) > room:
        raise _build_count_trouble(start)
    for pieces in product(*parts):
        name = "".join(pieces)
        if (number := _NAME_AND_NUMBER.fullmatch(name)) and not find_host_error(number[1]):
            raise _Trouble(start, *_describe_numbered_name(f"{user}{at}{number[1]}", number[2]))
        if trouble := find_host_error(name):
            raise _Trouble(start, trouble, configuration.NODESET.fix("spelling", text=escape_text(text)))
        yield Login(name=name, user=user if at else None)


def _expand_parts(hosts: str, column: int, room: int) -> "Iterator[list[str]]":
    for match in _PART.finditer(hosts):
        at = column + match.start()
        if match["literal"] is not None:
            yield [match["literal"]]
        elif match["stray"] == "[":
            raise _Trouble(at, *_describe_unclosed(hosts[: match.start()], hosts[match.start() + 1 :]))
        elif match["stray"] == "]":
            raise _Trouble(at, "this bracket was never opened", configuration.NODESET.fix("opened"))
        else:
            yield _expand_ranges(match["ranges"], at + 1, room)


def _describe_unclosed(before: str, ranges: str) -> tuple[str, Fix]:
    """The problem and the fix of an unclosed bracket: close it, and its last range if that is open."""
    if not ranges:
        return "this bracket is never closed", configuration.NODESET.fix("numbers", before=before)
    if end := _OPEN_RANGE.search(ranges):
        fix = configuration.NODESET.fix("end-and-bracket", before=before, ranges=ranges, end=_suggest_range_end(end[1]))
        return "this range has no end, and no ']'", fix
    return "this bracket is never closed", configuration.NODESET.fix("bracket", before=before, ranges=ranges)


def _suggest_range_end(first: str) -> str:
    """A plausible end for a range that starts with this number, in the same width."""
    return str(int(first) + 3).zfill(len(first))


def _describe_numbered_name(name: str, number: str) -> tuple[str, Fix]:
    """The problem and the fix of `n1:8`, which is 8 slots to MPI and a port to ssh."""
    if len(number) > _SLOT_DIGITS or int(number) == SSH_PORT:
        seen = f"'{escape_text(name)}:{escape_text(number, 20)}' has a port"
        return seen, configuration.NODESET.fix("port", name=name, port=number)
    counts = {f"{word}s": format_count(int(number), word) for word in ("rank", "slot")}
    fix = configuration.NODESET.fix("slots-or-port", **counts, name=name, number=number)
    return f"'{escape_text(name)}:{number}' is a name and a number", fix


def _expand_ranges(ranges: str, column: int, room: int) -> list[str]:
    if not ranges.strip():
        raise _Trouble(column - 1, "these brackets are empty", configuration.NODESET.fix("empty"))
    numbers: list[str] = []
    for written in ranges.split(","):
        at = column + len(written) - len(written.lstrip())
        numbers += _expand_range(written.strip(), at, room - len(numbers))
        column += len(written) + 1
    return numbers


def _expand_range(written: str, column: int, room: int) -> list[str]:
    match = _RANGE.fullmatch(written)
    if open_range := _OPEN_RANGE.fullmatch(written):
        fix = configuration.NODESET.fix("end", range=written, end=_suggest_range_end(open_range[1]))
        raise _Trouble(column, f"the range '{written}' has no end", fix)
    if not match:
        why = f"'{escape_text(written)}' is neither a number nor a range" if written else "a number is missing here"
        raise _Trouble(column, why, configuration.NODESET.fix("ranges-or-address" if ":" in written else "ranges"))
    first, last = match[1], match[2] or match[1]
    if max(len(first), len(last)) > MAX_DIGITS:
        raise _Trouble(column, f"this number has more than {MAX_DIGITS} digits", configuration.NODESET.fix("digits"))
    low, high = int(first), int(last)
    if high < low:
        fix = configuration.NODESET.fix("range", first=last, last=first)
        raise _Trouble(column, f"the range {first}-{last} runs backwards", fix)
    if last.startswith("0") and len(last) != len(first):
        wide = max(len(first), len(last))
        fix = configuration.NODESET.fix("range", first=first.zfill(wide), last=last.zfill(wide))
        raise _Trouble(column, f"{first} and {last} are padded to different widths", fix)
    if high - low >= room:
        raise _build_count_trouble(column)
    return [str(number).zfill(len(first)) for number in range(low, high + 1)]


def _fold_group(prefix: str, suffix: str, digits: list[str]) -> str:
    if len(digits) == 1:
        return f"{prefix}{digits[0]}{suffix}"
    runs: list[tuple[str, str]] = []
    for number in digits:
        # The next number of a run is padded like the run's first, as `expand_node_set` would write it.
        if runs and number == str(int(runs[-1][1]) + 1).zfill(len(runs[-1][0])):
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    inside = ",".join(low if low == high else f"{low}-{high}" for low, high in runs)
    return f"{prefix}[{inside}]{suffix}"
