"""Validates names from outside before they reach ssh or a node's environment, and formats errors about them.

To ssh, a host called `-oProxyCommand=…` is an option, and so runs a program. Names are validated here, once; code
behind this boundary trusts them.
"""

import re
from difflib import get_close_matches
from ipaddress import AddressValueError, IPv6Address
from itertools import islice
from typing import TYPE_CHECKING

from aboard.diagnoses.untrusted import escape_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from aboard.diagnoses import Diagnosis, Fix

HOST_CHARACTERS = "letters, digits, '.', '-' and '_'"
MAX_HOST = 253  # DNS, RFC 1035 section 2.3.4
MAX_PORT = 65_535
# Words of one sentence.
MAX_LISTED = 6

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_SHOWN = 80
_MOST_COMPARED = 2_000  # comparing with more takes seconds


def find_host_error(text: str) -> str | None:
    """Says why the text can't be a host name or address; None when it can."""
    if not text:
        return "a hostname is missing"
    if len(text) > MAX_HOST:
        return f"this hostname has {len(text)} characters; the maximum is {MAX_HOST}"
    if text.startswith("-"):
        return f"'{escape_text(text)}' starts with '-', which ssh would take for an option"
    if ":" in text:
        return _find_colon_error(text)
    if not _HOST.fullmatch(text):
        return f"'{escape_text(text)}' is not a hostname: use {HOST_CHARACTERS}, and start with a letter or digit"
    return None


def find_user_error(text: str) -> str | None:
    """Says why the text can't be a login name; None when it can."""
    if text.startswith("-"):
        return f"the user '{escape_text(text)}' starts with '-', which ssh would take for an option"
    if not _USER.fullmatch(text):
        return f"'{escape_text(text)}' is not a user name: use {HOST_CHARACTERS}"
    return None


def find_env_name_error(text: str) -> str | None:
    """Says why the text can't name an environment variable; None when it can."""
    if _ENV_NAME.fullmatch(text):
        return None
    return f"'{escape_text(text)}' is not a variable name: use letters, digits and '_', not starting with a digit"


def point_at_column(text: str, column: int) -> str:
    """The text with a caret under a column, shortened to the part around it."""
    start = max(0, column - _MOST_SHOWN // 2)
    window = "".join(char if char.isprintable() else "�" for char in text[start : start + _MOST_SHOWN])
    return f"    {window}\n    {' ' * (column - start)}^"


def find_nearest(word: str, known: "Iterable[str]") -> str | None:
    """The known word most similar to this one, if any is similar."""
    near = get_close_matches(word.lower(), list(islice(known, _MOST_COMPARED)), n=1, cutoff=0.6)
    return near[0] if near else None


def format_count(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`, `1,000 nodes`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def agree(subject: "Collection[object]", singular: str, plural: str) -> str:
    """The form of a word that agrees with the number of ranks or nodes: `is` for one, `are` for several."""
    return singular if len(subject) == 1 else plural


def format_list(words: "Sequence[str]", limit: int = MAX_LISTED) -> str:
    """`a`, `a and b`, `a, b and c`, and a count when they are many."""
    if len(words) > limit:
        return f"{', '.join(words[:limit])} and {len(words) - limit} more"
    return " and ".join(filter(None, (", ".join(words[:-1]), "".join(words[-1:]))))


def decode_latin1(value: object) -> str:
    """Decodes bytes that frames carry as Latin-1; "" for anything else that a node sent."""
    return value.encode("latin-1", "replace").decode("utf-8", "replace") if isinstance(value, str) else ""


def suggest_fix(diagnosis: "Diagnosis", word: str, known: "Iterable[str]") -> "Fix":
    """The diagnosis' fix `near` with the nearest known word, or its fix `known` with all words if none is near."""
    known = list(known)
    near = find_nearest(word, known)
    return diagnosis.fix("near", near=near) if near else diagnosis.fix("known", known=known)


def suggest_word(word: str, known: "Iterable[str]") -> str:
    """Suggests the nearest known word, or lists the known words if none is near."""
    known = list(known)
    near = find_nearest(word, known)
    return f"did you mean '{near}'?" if near else f"known here: {', '.join(known)}"


def _find_colon_error(text: str) -> str | None:
    try:
        IPv6Address(text)
    except AddressValueError:
        pass
    else:
        # A zone (`fe80::1%eth0`) is valid on one machine only, so its peers can't use the address.
        return None if "%" not in text else f"'{escape_text(text)}' has a zone, which means nothing on another machine"
    name, _, port = text.partition(":")
    if port.isdecimal():
        return (
            f"'{escape_text(text)}' has a port: in aboard.yaml write 'name: {escape_text(name)}' and 'port:"
            f" {escape_text(port)}'"
        )
    return f"'{escape_text(text)}' has a ':' but is not an IPv6 address"
