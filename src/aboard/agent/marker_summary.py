"""A checkpoint's marker in brief: which files contain the same slices, without each slice's name and place.

A marker for hundreds of ranks has tens of megabytes, nearly all of them slices, of which the head compares sets only.
"""

from __future__ import annotations

import hashlib
import json
import zlib

from aboard.agent import frames

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from typing import Any


def summarize_marker(text: bytes) -> bytes:
    """The compressed summary, as JSON with the size and hash of the marker; b"" if that is not intact.

    All slices that are in the same files are one slice of the summary: whatever needs them needs those files.
    """
    first, _, body = text.partition(b"\n")
    if first != b'{"sha256":"%s",' % hashlib.sha256(body).hexdigest().encode():
        return b""
    try:
        head, _, rest = text.partition(b'"tensors":{\n')
        content = {**frames.unpack(head.rstrip(b",\n") + b"}"), "tensors": {}}
        lines = rest.partition(b'"files":[\n')[2][: -len(b"\n]}\n")]
        content["files"] = _list_files(lines.split(b",\n") if lines else [])
    except frames.FrameError:
        return b""
    summary = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest(), "marker": content}
    return zlib.compress(json.dumps(summary).encode())


def _list_files(lines: list[bytes]) -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = []
    groups: dict[tuple[str, str], int] = {}
    # A group is another group's slices that one more file has: the number of that group, and of the file.
    numbers: dict[tuple[int, int], int] = {}
    for line in lines:
        file = frames.unpack(line)
        for name, box in frames.decode_fields(file, {"slices": dict})["slices"].items():
            slice_ = (name, repr(box))
            pair = (groups.get(slice_, 0), len(files))
            groups[slice_] = numbers.setdefault(pair, len(numbers) + 1)
        files.append({**file, "slices": {}})
    pairs = {group: pair for pair, group in numbers.items()}
    for group in set(groups.values()):
        before = group
        while before:
            before, number = pairs[before]
            files[number]["slices"][str(group)] = [[], []]
    return files
