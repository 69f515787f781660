"""The marker of a checkpoint, `manifest.json`: the checkpoint is complete if it exists. Pure data, never executed."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from hashlib import sha256
from typing import Annotated, Any, cast

from aboard.core.decoding import CustomDecoder, DecodeError, Word, decode, parse_json
from aboard.diagnoses.untrusted import escape_text
from aboard.durable_files import FileName, Sha256
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.store.shard_manifest import MAX_ITEMS

NAME = "manifest.json"
FORMAT = "aboard-checkpoint"
VERSION = 1
_SERIAL = re.compile(rb'^"serial":(\d{1,18}),$', re.MULTILINE)

_HASH = slice(len('{"sha256":"'), len('{"sha256":"') + 64)

# The start of a slice in its whole tensor and its extent, per dimension.
Box = tuple[tuple[int, ...], tuple[int, ...]]


def _decode_slices(value: object) -> dict[str, Box]:
    """Decoded by hand, since a large marker has millions."""
    try:
        return {name: (_parse_sizes(start), _parse_sizes(size)) for name, (start, size) in cast("Any", value).items()}
    except (AttributeError, TypeError, ValueError):
        raise DecodeError("slices expected") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """The whole tensor of all slices; `dtype` is named as in safetensors."""

    dtype: Word
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointFile:
    """One file: its writer, node, disk (named by the lowest rank that sees it), and content."""

    name: FileName
    rank: int
    node: str
    disk: int
    bytes: int
    sha256: Sha256
    slices: Annotated[Mapping[str, Box], CustomDecoder(_decode_slices)]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """What a run trains with, by which a checkpoint is compared with the run that resumes from it."""

    training: Annotated[Mapping[str, Any], MAX_ITEMS]
    # Sequences per step, of all ranks together.
    step_size: int
    world: int
    sharding: Word
    versions: Mapping[str, str]
    # A hash of the prepared data's content, in the order of its parts.
    data: Word
    # The model's configuration, if it has one.
    config: Annotated[Mapping[str, Any], MAX_ITEMS] | None
    # Identifies the weights that an adapter is trained on; empty without an adapter.
    base: Word = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitMarker(RunSettings):
    """A checkpoint without the tensors' bytes; `serial` counts within a folder: the highest is the newest."""

    serial: int
    step: int
    progress: Annotated[Mapping[str, Any], MAX_ITEMS]
    # Aliases of tied parameters, and the names under which they are stored.
    ties: Annotated[Mapping[str, str], MAX_ITEMS]
    tensors: Annotated[Mapping[str, TensorSpec], MAX_ITEMS]
    files: Annotated[tuple[CheckpointFile, ...], MAX_ITEMS]
    # What else a resume needs beside tensors and progress, such as the best evaluation so far.
    state: Annotated[Mapping[str, Any], MAX_ITEMS] = field(default_factory=dict)


class MarkerError(ValueError):
    """The content is not one of our markers, or not as it was written."""


def format_marker(about: Mapping[str, Any], tensors: Mapping[str, TensorSpec], lines: Iterable[str]) -> str:
    """The text of manifest.json: `about`, the tensors, and the lines of `format_file_line`.

    Its first line is a hash over all others: JSON alone wouldn't reveal a flipped digit.
    """
    fields = {"format": FORMAT, "version": VERSION, **about}
    head = "".join(f"{_encode_json(name)}:{_encode_json(value)},\n" for name, value in fields.items())
    wholes = ",\n".join(
        f"{_encode_json(name)}:{_encode_json([each.dtype, each.shape])}" for name, each in tensors.items()
    )
    body = f'{head}"tensors":{{\n{wholes}\n}},\n"files":[\n' + ",\n".join(lines) + "\n]}\n"
    return f'{{"sha256":"{sha256(body.encode()).hexdigest()}",\n{body}'


def format_file_line(part: CheckpointFile) -> str:
    """The entry of one file; each rank formats its own, so that no rank handles those of a thousand others."""
    return _encode_json({name: getattr(part, name) for name in CheckpointFile.__slots__})


def parse_file_line(line: str) -> CheckpointFile:
    """Parses what `format_file_line` made."""
    return decode(CheckpointFile, parse_json(line), strict=True)


def parse_marker(text: bytes) -> CommitMarker:
    """Parses what `format_marker` wrote; MarkerError says what is wrong with anything else."""
    return _decode_marker(_parse_content(text))


def parse_marker_summary(text: bytes) -> tuple[CommitMarker, int, str]:
    """A marker as a node summarizes it, each slice being a group of slices; and the marker's size and SHA-256."""
    try:
        summary = parse_json(text)
        content, size, digest = dict(summary["marker"]), summary["bytes"], summary["sha256"]
    except (ValueError, LookupError, TypeError) as error:
        raise MarkerError(f"its {NAME} is truncated or damaged") from error
    _check_version(content)
    return _decode_marker(content), decode(int, size, strict=True), decode(Sha256, digest, strict=True)


def parse_marker_head(content: Mapping[str, Any]) -> CommitMarker:
    """A marker without its tensors and files, from the fields before them."""
    _check_version(content)
    marker = _decode_marker({**content, "tensors": {}, "files": []})
    if type(marker.progress.get("index")) is not int:
        raise MarkerError("a field has the wrong type")
    return marker


def read_marker_hash(text: str | bytes) -> str:
    """The hash in the first line of a marker, which covers all others."""
    return text[_HASH].decode() if isinstance(text, bytes) else text[_HASH]


def parse_serial(text: bytes) -> int:
    """The serial of an intact marker only: much cheaper than parsing a large one."""
    _check_hash(text)
    match = _SERIAL.search(text)
    if match is None:
        raise MarkerError("it has no serial")
    return int(match[1])


def _encode_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _check_hash(text: bytes) -> None:
    first, _, body = text.partition(b"\n")
    if not first.startswith(b'{"sha256":"') or not body.startswith(b'"format":"' + FORMAT.encode()):
        raise MarkerError(f"its {NAME} is truncated, damaged, or not of {FORMAT}")
    if first != f'{{"sha256":"{sha256(body).hexdigest()}",'.encode():
        raise MarkerError(f"its {NAME} is truncated or damaged (its hash differs)")


def _parse_content(text: bytes) -> dict[str, Any]:
    _check_hash(text)
    try:
        content: dict[str, Any] = parse_json(text)
    except ValueError as error:
        raise MarkerError(f"its {NAME} is not JSON") from error
    _check_version(content)
    return content


def _check_version(content: Mapping[str, Any]) -> None:
    if (version := content.get("version")) != VERSION:
        raise MarkerError(f"its version is {escape_text(str(version))}, but this Aboard reads {VERSION}")


def _decode_marker(content: Mapping[str, Any]) -> CommitMarker:
    try:
        return decode(CommitMarker, content, strict=True)
    except DecodeError as error:
        raise MarkerError(f"a field is missing or has the wrong type ({error})") from error


def _parse_sizes(value: list[int]) -> tuple[int, ...]:
    if not all(isinstance(each, int) and each >= 0 for each in value):
        raise ValueError(f"{value} are not sizes")
    return tuple(value)
