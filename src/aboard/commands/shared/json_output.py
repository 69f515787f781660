"""JSON output for scripts, with stable keys."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum, IntEnum
from typing import Any

from aboard.core.probes.facts import Unknown
from aboard.diagnoses import Diagnosis
from aboard.diagnoses.untrusted import Untrusted, escape_lines

# The version of all documents: new keys don't change it, removed or renamed ones do.
SCHEMA = 1
# Characters of an untrusted text.
_LONGEST_TEXT = 4096


def dump_json(document: Any, *, lines: bool = False) -> str:
    """The text that `--json` prints, for a dataclass or mapping; with `lines`, without line ends in it.

    It is ASCII, so that neither a terminal nor the locale of a pipe changes it.
    """
    indent = None if lines else 2
    return json.dumps({"schema": SCHEMA, **to_plain_value(document)}, indent=indent, allow_nan=False)


def to_plain_value(value: Any) -> Any:
    """Converts any fact to plain JSON values; an unknown has its reason, and NaN or infinity becomes null.

    Texts have no terminal control characters, except for line ends in our own texts, such as a fix.
    """
    plain: Any
    match value:
        case Enum():
            plain = value.name.lower() if isinstance(value, IntEnum) else to_plain_value(value.value)
        case str() | Untrusted():
            plain = value.visible(_LONGEST_TEXT) if isinstance(value, Untrusted) else escape_lines(value)
        case None | int():
            plain = value
        case float():
            plain = value if math.isfinite(value) else None
        case Unknown(why=why):
            plain = {"unknown": why}
        case Mapping():
            plain = {_format_key(key): to_plain_value(each) for key, each in value.items()}
        case AbstractSet():
            plain = sorted((to_plain_value(each) for each in value), key=str)
        case Iterable():
            plain = [to_plain_value(each) for each in value]
        case _ if is_dataclass(value):
            plain = {name: to_plain_value(each) for name, each in _list_fields(value)}
        case _:
            plain = escape_lines(str(value))
    return plain


def _list_fields(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a value; a diagnosis is reduced to its code."""
    for field in fields(value):
        member = getattr(value, field.name)
        yield ("code", member.code) if isinstance(member, Diagnosis) else (field.name, member)


def _format_key(key: Any) -> str:
    """A tuple, such as a pair of nodes, becomes its parts separated by a space, which no name contains."""
    return " ".join(map(_format_key, key)) if isinstance(key, tuple) else str(to_plain_value(key))
