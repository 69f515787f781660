"""Writes safetensors files one tensor at a time: https://huggingface.co/docs/safetensors, "Format"."""

import json
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path

import torch

from aboard.lazy_dataclass import dataclass

# The shard size of the hub's own tools.
SHARD_BYTES = 5 * 10**9
# The type names of a header.
DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES_BY_NAME = {name: dtype for dtype, name in DTYPE_NAMES.items()}
ALIGNMENT = 8


@dataclass(frozen=True, kw_only=True)
class LazyTensor:
    """A tensor that is read when it is written."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], torch.Tensor]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def write_safetensors(
    tensors: Mapping[str, LazyTensor], folder: Path, *, name: str = "model", limit: int = SHARD_BYTES
) -> tuple[int, int]:
    """Writes one file, or several and their index; returns the number of files and the bytes of all tensors."""
    shards = _split_shards(tensors, limit)
    names = [
        f"{name}.safetensors" if len(shards) == 1 else f"{name}-{number:05}-of-{len(shards):05}.safetensors"
        for number in range(1, len(shards) + 1)
    ]
    for file, shard in zip(names, shards, strict=True):
        _write_shard(shard, folder / file)
    size = sum(each.bytes for each in tensors.values())
    if len(shards) > 1:
        where = {tensor: file for file, shard in zip(names, shards, strict=True) for tensor in shard}
        index = {"metadata": {"total_size": size}, "weight_map": where}
        (folder / f"{name}.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return len(shards), size


def _split_shards(tensors: Mapping[str, LazyTensor], limit: int) -> list[dict[str, LazyTensor]]:
    shards: list[dict[str, LazyTensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.bytes > limit:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.bytes
    return shards


def _write_shard(tensors: Mapping[str, LazyTensor], path: Path) -> None:
    # transformers requires the format key; wide types first, so that each is aligned.
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    at = 0
    for name, tensor in ordered:
        place = [at, at + tensor.bytes]
        header[name] = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": tensor.shape, "data_offsets": place}
        at += tensor.bytes
    with path.open("wb") as file:
        file.write(encode_header(header))
        for _, tensor in ordered:
            file.write(tensor.read().contiguous().view(-1).view(torch.uint8).numpy().data)


def encode_header(content: dict[str, object]) -> bytes:
    """Eight bytes of length, then JSON, padded so that the tensors are aligned."""
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
