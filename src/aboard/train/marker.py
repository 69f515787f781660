"""The marker of a checkpoint, `manifest.json`: where it stands, the checkpoint is whole. Read as data, never run."""

import json
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from aboard.lazy import dataclass

NAME = "manifest.json"
FORMAT = "aboard-checkpoint"
VERSION = 1
_SERIAL = re.compile(rb'^"serial":(\d+),$', re.MULTILINE)

# Where a slice begins in its whole tensor, and how far it goes, in each dimension.
Box = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """A tensor as it is when all its slices are put together; `dtype` is named as safetensors names it."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One file: who wrote it, where, onto which disk (named by the lowest rank that sees it), and what is in it."""

    name: str
    rank: int
    node: str
    disk: int
    bytes: int
    sha256: str
    slices: Mapping[str, Box]


@dataclass(frozen=True, kw_only=True, slots=True)
class Marker:
    """A checkpoint without its tensors' bytes; `serial` counts those of a folder, so that the highest is the newest."""

    serial: int
    step: int
    progress: Mapping[str, Any]
    training: Mapping[str, Any]
    # Bins of one step, of all ranks together.
    step_size: int
    world: int
    sharding: str
    versions: Mapping[str, str]
    # A hash of the prepared data's content, in the order of its parts.
    data: str
    # The model's configuration, where it has one.
    config: Mapping[str, Any] | None
    # Other names of the same parameter, and the name that it is stored under.
    ties: Mapping[str, str]
    tensors: Mapping[str, Whole]
    files: tuple[Part, ...]


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
    content = _content(text)
    try:
        return _marker(content)
    except (KeyError, TypeError, ValueError) as error:
        raise NoMarker(f"a field is missing or of the wrong kind ({error})") from error


def read_head(content: Mapping[str, Any]) -> Marker:
    """A marker without its tensors and files, from the fields that stand before them."""
    try:
        _same_version(content)
        marker = _marker({**content, "tensors": {}, "files": ()})
        numbers = (marker.step, marker.step_size, marker.world, marker.progress["index"])
    except (KeyError, TypeError, ValueError) as error:
        raise NoMarker(f"a field is missing or of the wrong kind ({error})") from error
    if not all(type(number) is int for number in numbers) or not isinstance(marker.training, dict):
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
    if content["version"] != VERSION:
        raise NoMarker(f"its version is {content['version']}, and this Aboard reads {VERSION}")


def _marker(content: Mapping[str, Any]) -> Marker:
    fields = {name: content[name] for name in Marker.__slots__}
    tensors = {name: Whole(dtype=dtype, shape=_sizes(shape)) for name, (dtype, shape) in fields["tensors"].items()}
    return Marker(**fields | {"tensors": tensors, "files": tuple(map(_part, fields["files"]))})


def _part(content: Mapping[str, Any]) -> Part:
    # A checkpoint may come from elsewhere: it names files beside its marker, and no others.
    if Path(content["name"]).name != content["name"]:
        raise ValueError(f"{content['name']} is no plain file name")
    slices = {name: (_sizes(start), _sizes(size)) for name, (start, size) in content["slices"].items()}
    return Part(**{**content, "slices": slices})


def _sizes(value: list[int]) -> tuple[int, ...]:
    if not all(isinstance(each, int) and each >= 0 for each in value):
        raise ValueError(f"{value} are no sizes")
    return tuple(value)
