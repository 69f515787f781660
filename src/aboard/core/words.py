"""Words that come from outside: which may reach ssh and a node's environment, and how to show those that may not.

A host called `-oProxyCommand=…` is an option to ssh and a program to the user who pasted it, so what a name may
hold is settled here, once, and everything behind the border trusts it.
"""

import re
from difflib import get_close_matches
from ipaddress import AddressValueError, IPv6Address
from itertools import islice
from typing import TYPE_CHECKING

from aboard.diagnoses.untrusted import visible as visible  # noqa: PLC0414 - most take it from here

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aboard.diagnoses import Diagnosis, Fix

HOST_CHARACTERS = "letters, digits, '.', '-' and '_'"
MAX_HOST = 253  # DNS, RFC 1035 section 2.3.4
MAX_PORT = 65_535

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHOWN = 80
_COMPARED = 2_000  # comparing with more takes seconds


def host_trouble(text: str) -> str | None:
    """Says why the text can't be a host name or address; None when it can."""
    if not text:
        return "a host name is missing"
    if len(text) > MAX_HOST:
        return f"a host name of {len(text)} characters; {MAX_HOST} is the most there can be"
    if text.startswith("-"):
        return f"'{visible(text)}' starts with '-', which ssh would take for an option"
    if ":" in text:
        return _colon_trouble(text)
    if not _HOST.fullmatch(text):
        return f"'{visible(text)}' is no host name: it may hold {HOST_CHARACTERS}, and starts with a letter or digit"
    return None


def user_trouble(text: str) -> str | None:
    """Says why the text can't be a login name; None when it can."""
    if text.startswith("-"):
        return f"the user '{visible(text)}' starts with '-', which ssh would take for an option"
    if not _USER.fullmatch(text):
        return f"'{visible(text)}' is no user name: it may hold {HOST_CHARACTERS}"
    return None


def env_name_trouble(text: str) -> str | None:
    """Says why the text can't name an environment variable; None when it can."""
    if _ENV_NAME.fullmatch(text):
        return None
    return f"'{visible(text)}' is no variable name: it may hold letters, digits and '_', and starts with no digit"


def point_at(text: str, column: int) -> str:
    """The text with a caret under a column, cut to the part around it."""
    start = max(0, column - _SHOWN // 2)
    window = "".join(char if char.isprintable() else "�" for char in text[start : start + _SHOWN])
    return f"    {window}\n    {' ' * (column - start)}^"


def nearest(word: str, known: "Iterable[str]") -> str | None:
    """The known word that is most like this one, if any is like it."""
    near = get_close_matches(word.lower(), list(islice(known, _COMPARED)), n=1, cutoff=0.6)
    return near[0] if near else None


def many(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`, `1,000 nodes`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def carried(given: object) -> str:
    """A node's bytes, which travel in frames as Latin-1, as text; whatever else it sent is no text."""
    return given.encode("latin-1", "replace").decode("utf-8", "replace") if isinstance(given, str) else ""


def meant(diagnosis: "Diagnosis", word: str, known: "Iterable[str]") -> "Fix":
    """The diagnosis' fix `near` with the nearest known word, or its fix `known` with all when none is near."""
    known = list(known)
    near = nearest(word, known)
    return diagnosis.fix("near", near=near) if near else diagnosis.fix("known", known=known)


def did_you_mean(word: str, known: "Iterable[str]") -> str:
    """A question for the nearest known word, or the list of known words when none is near."""
    known = list(known)
    near = nearest(word, known)
    return f"did you mean '{near}'?" if near else f"known here: {', '.join(known)}"


def _colon_trouble(text: str) -> str | None:
    try:
        IPv6Address(text)
    except AddressValueError:
        pass
    else:
        # A zone (`fe80::1%eth0`) is an address on one machine only, so it can't name a node to its peers.
        return None if "%" not in text else f"'{visible(text)}' has a zone, which means nothing on another machine"
    name, _, port = text.partition(":")
    if port.isdecimal():
        return f"'{visible(text)}' has a port: in aboard.yaml write 'name: {visible(name)}' and 'port: {visible(port)}'"
    return f"'{visible(text)}' has a ':' but is no IPv6 address"
