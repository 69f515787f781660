"""Decodes all JSON from outside: the annotations of a dataclass say what is accepted.

    Untrusted           text as received, for code that shows or quotes it
    str                 the same text made visible, on one line; `Lines` keeps the line ends
    Word, Address, …    text of a safe alphabet; anything else is refused
    int, float          finite, and exact in every program that reads JSON; int is never negative (but see `Signed`)
    X | Y               the first that fits
    tuple[X, ...]       the elements that fit; Mapping[K, V] likewise
    tuple[X, Y]         a row; a dataclass may also come as a row
    Mapping[tuple[X, Y], Z]  from rows of three

A wrong or missing field takes its default; without a default, its object is refused. With `strict`, any error refuses
the whole value. Every size is limited, so that a malicious node can't fill the head's memory.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from aboard.core.text.input_text import find_host_error, find_user_error
from aboard.diagnoses.untrusted import Untrusted, escape_lines, escape_text
from aboard.lazy_dataclass import dataclass

T = TypeVar("T")
Decoder = Callable[[object], Any]
_IP = re.compile(r"[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9_.-]{1,32})?")
_CHARACTERS, _ELEMENTS, _EXACT = 400, 256, 2**53
# JSON such as `[],[],[],…` takes twenty times its size in memory. Deeper values could not be encoded or walked through.
_MOST_BYTES, _MOST_VALUES, _MOST_DEPTH = 256 * 2**20, 16_000_000, 64


class DecodeError(ValueError):
    """The bytes are no JSON, or it doesn't match the type; the message names the field."""


@dataclass(frozen=True)
class MaxLength:
    """The maximum of characters in a text or elements in a collection; `last` keeps the end instead of the start."""

    most: int
    last: bool = False


@dataclass(frozen=True)
class MinValue:
    """The smallest accepted number; the default is zero."""

    least: int


@dataclass(frozen=True)
class Matching:
    """Text that matches the pattern completely, and so needs no escaping."""

    pattern: str


@dataclass(frozen=True)
class JsonKey:
    """The field's key in the JSON, if it differs from the field's name."""

    name: str


@dataclass(frozen=True)
class KeyedBy:
    """A tuple of dataclasses encoded as an object, whose keys are this field of theirs."""

    field: str


@dataclass(frozen=True)
class CustomDecoder:
    """Decodes with this function, which raises a DecodeError."""

    function: Decoder


class _Lines:
    pass


Lines = Annotated[str, _Lines(), MaxLength(20_000)]
Word = Annotated[str, Matching(r"[\w.:@/+-]{0,200}")]
Address = Annotated[str, Matching(r"[0-9A-Fa-f.:]{0,45}(%[\w.-]{1,20})?")]
Endpoint = Annotated[str, Matching(r"(\[?[0-9A-Fa-f.:]{0,45}(%[\w.-]{1,20})?\]?|\*):\d{1,5}")]
Signed = Annotated[int, MinValue(-_EXACT)]


def _make_name_decoder(find_error: Callable[[str], str | None]) -> Decoder:
    def decode_name(value: object) -> str:
        if isinstance(value, str) and find_error(value) is None:
            return value
        raise DecodeError("expected a name that ssh can't read as an option")

    return decode_name


def _decode_port(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 16:
        return value
    raise DecodeError("expected a port")


def _decode_address(value: object) -> str:
    """Checked strictly: Python accepts anything after `%`, and fixes put it in /etc/hosts and sed."""
    if isinstance(value, str) and _IP.fullmatch(value) and Untrusted(value).as_address():
        return value
    raise DecodeError("no address")


# What one node reports, others connect to.
PortNumber = Annotated[int, CustomDecoder(_decode_port)]
IpAddress = Annotated[str, CustomDecoder(_decode_address)]
HostName = Annotated[str, CustomDecoder(_make_name_decoder(find_host_error))]
UserName = Annotated[str, CustomDecoder(_make_name_decoder(find_user_error))]


def parse_json(data: bytes | str) -> Any:
    """Parses JSON of limited size and depth, or raises a DecodeError."""
    return decode_with(_parse_limited, data)


def try_parse_json(data: bytes | str) -> Any:
    """Like `parse_json`; None for what isn't JSON."""
    try:
        return parse_json(data)
    except DecodeError:
        return None


def decode_with(parse: Callable[[Any], T], value: Any) -> T:
    """What `parse` makes of a foreign value; whatever it raises becomes a DecodeError."""
    try:
        return parse(value)
    except DecodeError:
        raise
    except Exception as error:
        # No list of types is complete: ValueError, UnicodeError, KeyError and TypeError of wrong content, OverflowError
        # of numbers, RecursionError of depth, MemoryError of size; a missed one would be a traceback instead of a name.
        raise DecodeError(f"{type(error).__name__}: {escape_text(str(error), 100)}") from error


def decode(kind: type[T], value: object, *, strict: bool = False) -> T:
    """Decodes the JSON value as this type; raises a DecodeError if it doesn't match."""
    decoder: Callable[[Any], T] = _build_decoder(cast("Any", kind), strict)
    return decode_with(decoder, value)


def make_decoder(kind: Any, *, strict: bool = False) -> Decoder:
    """A decoder for hot loops: looking one up by its annotation takes longer than decoding most values."""
    return _build_decoder(kind, strict)


def try_decode(kind: type[T], value: object) -> T | None:
    """Like `decode`; None if the value doesn't match."""
    try:
        return decode(kind, value)
    except DecodeError:
        return None


def _parse_limited(data: bytes | str) -> Any:
    signs = (",", "[", "{")
    commas, *brackets = (data.count(each.encode() if isinstance(data, bytes) else each) for each in signs)  # type: ignore[arg-type]  # as data
    if len(data) > _MOST_BYTES or commas + sum(brackets) > _MOST_VALUES:
        raise DecodeError("too long")
    value = json.loads(data)
    level = [value] if sum(brackets) > _MOST_DEPTH else []
    for _ in range(_MOST_DEPTH):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
    if level:
        raise DecodeError("nested too deeply")
    return value


@cache
def _build_decoder(hint: Any, strict: bool) -> Decoder:  # noqa: FBT001, PLR0911 - part of the cache's key; a decoder for each kind
    marks: tuple[Any, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        marks = tuple(rest)
    via = _find_mark(marks, CustomDecoder)
    if via is not None:
        return via.function
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _decode_union([_build_decoder(each, strict) for each in args if each is not NoneType], NoneType in args)
    if origin is Literal:
        return _decode_choice({each: each for each in args})
    if origin is tuple and args[-1] is not ...:
        return _decode_row([_build_decoder(each, strict) for each in args])
    if origin in (tuple, frozenset):
        return _decode_elements(origin, args[0], marks, strict)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _decode_mapping(args[0], args[1], marks, strict)
    return _decode_plain(hint, marks, strict)


def _decode_plain(hint: Any, marks: tuple[Any, ...], strict: bool) -> Decoder:  # noqa: FBT001, PLR0911 - as above
    if hint in (str, Untrusted):
        return _decode_text(hint, marks)
    if hint is bool:
        return _decode_bool
    if hint is int:
        least = _find_mark(marks, MinValue)
        return _decode_number(int, int, 0 if least is None else least.least)
    if hint is float:
        return _decode_number(float, int | float, -_EXACT)
    if hint is Any:
        return lambda value: value
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _decode_choice({each.value: each for each in hint})
    if isinstance(hint, type) and is_dataclass(hint):
        # A dataclass may contain its own type, so its decoder is built on first use.
        return lambda value: _build_object_decoder(hint, strict)(value)  # noqa: PLW0108 - built on first use
    raise TypeError(f"no decoder for {hint}")


def _decode_text(hint: Any, marks: tuple[Any, ...]) -> Decoder:
    limit = _find_mark(marks, MaxLength) or MaxLength(_CHARACTERS)
    matching = _find_mark(marks, Matching)
    lines = _find_mark(marks, _Lines)
    fits = re.compile(matching.pattern).fullmatch if matching else None

    def read(value: object) -> Any:
        if not isinstance(value, str) or (fits is not None and fits(value) is None):
            raise DecodeError("expected text")
        text = value[-limit.most :] if limit.last else value[: limit.most]
        if hint is Untrusted:
            return Untrusted(text)
        return escape_lines(text) if lines else escape_text(text, limit.most)

    return read


def _decode_number(kind: type, accepted: Any, least: float) -> Decoder:
    def read(value: object) -> Any:
        if not isinstance(value, accepted) or isinstance(value, bool) or not least <= value < _EXACT:
            raise DecodeError("expected a number")
        return kind(value)

    return read


def _decode_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise DecodeError("expected true or false")


def _decode_choice(choices: Mapping[Any, Any]) -> Decoder:
    def read(value: object) -> Any:
        # In Python, True == 1.
        if isinstance(value, str | int) and not isinstance(value, bool) and value in choices:
            return choices[value]
        raise DecodeError("unexpected value")

    return read


def _decode_union(decoders: list[Decoder], optional: bool) -> Decoder:  # noqa: FBT001 - private
    def read(value: object) -> Any:
        if value is None and optional:
            return None
        for decoder in decoders[:-1]:
            try:
                return decoder(value)
            except DecodeError:
                pass
        return decoders[-1](value)

    return read


def _decode_row(parts: list[Decoder]) -> Decoder:
    def read(value: object) -> Any:
        if not isinstance(value, list) or len(value) < len(parts):
            raise DecodeError(f"expected a row of {len(parts)}")
        return tuple(part(each) for part, each in zip(parts, value, strict=False))

    return read


def _decode_elements(made: Any, hint: Any, marks: tuple[Any, ...], strict: bool) -> Decoder:  # noqa: FBT001 - private
    limit = _find_mark(marks, MaxLength) or MaxLength(_ELEMENTS)
    keyed = _find_mark(marks, KeyedBy)
    element = _build_decoder(hint, strict)

    def read(value: object) -> Any:
        if keyed is not None and isinstance(value, dict):
            value = [{**each, keyed.field: key} for key, each in value.items() if isinstance(each, dict)]
        if not isinstance(value, list):
            raise DecodeError("expected a list")
        items = value[-limit.most :] if limit.last else value[: limit.most]
        return made(_decode_each(((each, element) for each in items), strict))

    return read


def _decode_mapping(key: Any, value: Any, marks: tuple[Any, ...], strict: bool) -> Decoder:  # noqa: FBT001 - private
    limit = _find_mark(marks, MaxLength) or MaxLength(_ELEMENTS)
    keys, values = _build_decoder(key, strict), _build_decoder(value, strict)
    width = len(get_args(key)) if get_origin(key) is tuple else 0

    def read_item(item: Any) -> Any:
        name, value = item
        return keys(int(name) if key is int and name.isdecimal() and len(name) < 10 else name), values(value)  # noqa: PLR2004 - int() of millions of digits takes long

    def read(value: object) -> Any:
        if width and isinstance(value, list):
            items = [(row[:width], row[width]) for row in value if isinstance(row, list) and len(row) > width]
        elif isinstance(value, dict):
            items = list(value.items())
        else:
            raise DecodeError("expected an object")
        return dict(_decode_each(((item, read_item) for item in items[: limit.most]), strict))

    return read


def _decode_each(pairs: Any, strict: bool) -> list[Any]:  # noqa: FBT001 - private
    found = []
    for value, decoder in pairs:
        try:
            found.append(decoder(value))
        except DecodeError:
            if strict:
                raise
    return found


@cache
def _build_object_decoder(kind: type, strict: bool) -> Decoder:  # noqa: FBT001 - part of the cache's key
    hints = get_type_hints(kind, include_extras=True)
    plan = []
    for field in fields(kind):
        hint = hints[field.name]
        key = _find_mark(get_args(hint)[1:], JsonKey) if get_origin(hint) is Annotated else None
        required = field.default is MISSING and field.default_factory is MISSING
        plan.append((field.name, key.name if key else field.name, _build_decoder(hint, strict), required))

    def read(value: object) -> Any:
        if isinstance(value, list):
            value = dict(zip((key for _name, key, *_rest in plan), value, strict=False))
        if not isinstance(value, dict):
            raise DecodeError("expected an object")
        values = {}
        for name, key, decoder, required in plan:
            if key in value:
                try:
                    values[name] = decoder(value[key])
                except DecodeError as error:
                    if required or strict:
                        raise DecodeError(f"{key}: {error}") from None
            elif required:
                raise DecodeError(f"{key} is missing")
        return kind(**values)

    return read


def _find_mark(marks: tuple[Any, ...], kind: type[T]) -> T | None:
    return next((each for each in marks if isinstance(each, kind)), None)
