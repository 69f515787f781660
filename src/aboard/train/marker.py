"""The marker of a checkpoint, `manifest.json`: where it stands, the checkpoint is whole. Read as data, never run."""

import json
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Annotated, Any, cast

from aboard.core.decoding import DecodeError, Via, Word, decode
from aboard.data.store.manifest import MANY, FileName, Sha256
from aboard.diagnoses.untrusted import visible
from aboard.lazy import dataclass

NAME = "manifest.json"
FORMAT = "aboard-checkpoint"
VERSION = 1
_SERIAL = re.compile(rb'^"serial":(\d+),$', re.MULTILINE)

# Where a slice begins in its whole tensor, and how far it goes, in each dimension.
Box = tuple[tuple[int, ...], tuple[int, ...]]


def _read_slices(given: object) -> dict[str, Box]:
    """By hand, since there are millions in a large marker."""
    try:
        return {name: (_sizes(start), _sizes(size)) for name, (start, size) in cast("Any", given).items()}
    except (AttributeError, TypeError, ValueError):
        raise DecodeError("slices are wanted") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """A tensor as it is when all its slices are put together; `dtype` is named as safetensors names it."""

    dtype: Word
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One file: who wrote it, where, onto which disk (named by the lowest rank that sees it), and what is in it."""

    name: FileName
    rank: int
    node: str
    disk: int
    bytes: int
    sha256: Sha256
    slices: Annotated[Mapping[str, Box], Via(_read_slices)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Marker:
    """A checkpoint without its tensors' bytes; `serial` counts those of a folder, so that the highest is the newest."""

    serial: int
    step: int
    progress: Annotated[Mapping[str, Any], MANY]
    training: Annotated[Mapping[str, Any], MANY]
    # Bins of one step, of all ranks together.
    step_size: int
    world: int
    sharding: Word
    versions: Mapping[str, str]
    # A hash of the prepared data's content, in the order of its parts.
    data: Word
    # The model's configuration, where it has one.
    config: Annotated[Mapping[str, Any], MANY] | None
    # Other names of the same parameter, and the name that it is stored under.
    ties: Annotated[Mapping[str, str], MANY]
    tensors: Annotated[Mapping[str, Whole], MANY]
    files: Annotated[tuple[Part, ...], MANY]


class NoMarker(ValueError):
    """What stands there is no marker of ours, or not the one that was written."""


def written(about: Mapping[str, Any], tensors: Mapping[str, Whole], lines: Iterable[str]) -> str:
    """The text of manifest.json, of the fields before `tensors`, the tensors, and what `line` made of each file.

    Its first line is a hash over all others: a flipped digit is still JSON.
    """
    fields = {"format": FORMAT, "version": VERSION, **about}
    head = "".join(f"{_json(name)}:{_json(value)},\n" for name, value in fields.items())
    wholes = ",\n".join(f"{_json(name)}:{_json([each.dtype, each.shape])}" for name, each in tensors.items())
    body = f'{head}"tensors":{{\n{wholes}\n}},\n"files":[\n' + ",\n".join(lines) + "\n]}\n"
    return f'{{"sha256":"{sha256(body.encode()).hexdigest()}",\n{body}'


def line(part: Part) -> str:
    """One file's entry; each rank makes its own, so that nobody has to handle those of a thousand others."""
    return _json({name: getattr(part, name) for name in Part.__slots__})


def read(text: bytes) -> Marker:
    """What `written` wrote; NoMarker says what is wrong with anything else."""
    return _decode(_content(text))


def read_head(content: Mapping[str, Any]) -> Marker:
    """A marker without its tensors and files, from the fields that stand before them."""
    _same_version(content)
    marker = _decode({**content, "tensors": {}, "files": []})
    if type(marker.progress.get("index")) is not int:
        raise NoMarker("a field is of the wrong kind")
    return marker


def read_serial(text: bytes) -> int:
    """The serial alone, of a marker that is whole: much cheaper than all of a large one."""
    _judge(text)
    found = _SERIAL.search(text)
    if found is None:
        raise NoMarker("it has no serial")
    return int(found[1])


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _judge(text: bytes) -> None:
    first, _, body = text.partition(b"\n")
    if not first.startswith(b'{"sha256":"') or not body.startswith(b'"format":"' + FORMAT.encode()):
        raise NoMarker(f"its marker is cut off, damaged, or none of {FORMAT}")
    if first != f'{{"sha256":"{sha256(body).hexdigest()}",'.encode():
        raise NoMarker("its marker is cut off or damaged (the hash over it differs)")


def _content(text: bytes) -> dict[str, Any]:
    _judge(text)
    content: dict[str, Any] = json.loads(text)
    _same_version(content)
    return content


def _same_version(content: Mapping[str, Any]) -> None:
    if (version := content.get("version")) != VERSION:
        raise NoMarker(f"its version is {visible(str(version))}, and this Aboard reads {VERSION}")


def _decode(content: Mapping[str, Any]) -> Marker:
    try:
        return decode(Marker, content, strict=True)
    except DecodeError as error:
        raise NoMarker(f"a field is missing or of the wrong kind ({error})") from error


def _sizes(value: list[int]) -> tuple[int, ...]:
    if not all(isinstance(each, int) and each >= 0 for each in value):
        raise ValueError(f"{value} are no sizes")
    return tuple(value)
