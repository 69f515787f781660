"""500 files that nobody should have, read and encoded to the end: each trouble says its file and line."""

import gzip
import io
import json
import random
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chats import QWEN, made

import aboard.trainer.data.intake.json_array
import aboard.trainer.data.intake.jsonl_and_text
from aboard.diagnoses import AboardError
from aboard.trainer.data.intake.read_chunk import detect_format, read_rows
from aboard.trainer.data.intake.row_formats import FORMAT_NAMES
from aboard.trainer.data.intake.source_chunks import SourceSpec, list_source_chunks
from aboard.trainer.data.rows import DataRow, EncodedRow, InvalidRow
from aboard.trainer.data.tokens.encoder import Encoder

pytestmark = pytest.mark.ci  # transformers is a second in each worker

FILES = 500
LIMIT = 1 << 16

Rng = random.Random

_ASKED = {"role": "user", "content": "Hi there"}
_ANSWER = {"role": "assistant", "content": "Hello you"}
_GOOD: list[dict[str, Any]] = [
    {"instruction": "Say", "input": "", "output": "Yes"},
    {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
    {"messages": [_ASKED, _ANSWER], "tools": [{"type": "function", "function": {"name": "get"}}]},
    {"prompt": "Hi", "completion": " Hello"},
    {"text": "Hello there"},
    {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]},
]
_ODD: list[Any] = [
    None, True, 0, -1, 1e308, 10**30, "", " ", "\x00", "\ud800", "🦉" * 50, "<|im_end|>", [], [None], {}, [[]], [{}],
    {"role": "user"}, [{"role": 5, "content": []}], [{"from": "gpt"}], [1, "a"], [2**40], [0.5], "{", "[]", '{"a": 1}',
]  # fmt: skip


def record(rng: Rng) -> dict[str, Any]:
    """A good row, or one with a value of the wrong kind somewhere."""
    found: Any = json.loads(json.dumps(rng.choice(_GOOD)))
    spot = found
    while rng.random() < 0.5:
        keys = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
        if not keys:
            break
        key = rng.choice(keys)
        if isinstance(spot[key], dict | list) and rng.random() < 0.6:
            spot = spot[key]
        else:
            spot[key] = deepcopy(rng.choice(_ODD))
    return dict(found)


def json_lines(rng: Rng) -> bytes:
    base = [dict(rng.choice(_GOOD))] if rng.random() < 0.7 else []
    rows = base * rng.randint(0, 5) + [record(rng) for _ in range(rng.randint(0, 6))]
    lines = [json.dumps(row).encode() for row in rows]
    for _ in range(rng.randint(0, 3)):
        lines.insert(rng.randint(0, len(lines)), rng.choice(_LINES)(rng))
    return rng.choice([b"", b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\x00"]) + rng.choice([b"\n", b"\r\n", b"\r"]).join(
        lines
    )


_LINES: list[Callable[[Rng], bytes]] = [
    lambda rng: b'{"text": "' + bytes(rng.randrange(256) for _ in range(20)) + b'"}',
    lambda rng: b'{"text": "' + b"x" * (LIMIT * rng.randint(1, 4)) + b'"}',
    lambda rng: b"[" * rng.choice([10, 2_000, 20_000]),
    lambda _: b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    lambda rng: b"\x00" * rng.randint(1, 50),
    lambda _: b'{"text": "\\ud83d"}',
    lambda rng: json.dumps(rng.choice(_ODD)).encode(),
    lambda _: b'{"text": ' + b"9" * 5_000 + b"}",
    lambda _: b'{"text": NaN, "text": Infinity}',
    lambda rng: bytes(rng.randrange(256) for _ in range(rng.randint(1, 200))),
]


def json_list(rng: Rng) -> bytes:
    rows = [record(rng) for _ in range(rng.randint(0, 6))]
    whole: Any = rows if rng.random() < 0.6 else {"version": 1, "data": rows}
    return json.dumps(whole, indent=rng.choice([None, 2])).encode()


def parquet(rng: Rng) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([dict(rng.choice(_GOOD))] * rng.randint(1, 300)), out, row_group_size=50)
    return out.getvalue()


def arrow(rng: Rng) -> bytes:
    table = pa.Table.from_pylist([dict(rng.choice(_GOOD))] * rng.randint(1, 300))
    out = io.BytesIO()
    with rng.choice([pa.ipc.new_stream, pa.ipc.new_file])(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=50)
    return out.getvalue()


def megatron(rng: Rng) -> bytes:
    sizes = np.array([rng.randint(0, 9) for _ in range(5)], "<i4")
    head = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + b"\x08" + (5).to_bytes(8, "little")
    return head + sizes.tobytes() + np.concatenate([[0], np.cumsum(sizes * 2)])[:5].astype("<i8").tobytes()


_KINDS: dict[str, Callable[[Rng], bytes]] = {
    ".jsonl": json_lines,
    ".json": json_list,
    ".parquet": parquet,
    ".arrow": arrow,
    ".idx": megatron,
    ".jsonl.gz": lambda rng: gzip.compress(json_lines(rng)),
    ".json.gz": lambda rng: gzip.compress(json_list(rng)),
    ".jsonl.zst": lambda rng: bytes(pa.compress(json_lines(rng), "zstd", asbytes=True)),
}


def spoiled(rng: Rng, content: bytes) -> bytes:
    """The content cut off, with bytes flipped, put in or doubled; or as it is."""
    for _ in range(rng.choice([0, 1, 1, 3])):
        at = rng.randint(0, max(len(content) - 1, 0))
        way = rng.randrange(4)
        if way == 0:
            content = content[:at]
        elif way == 1:
            content = content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]
        elif way == 2:
            content = content[:at] + bytes(rng.randrange(256) for _ in range(rng.randint(1, 8))) + content[at:]
        else:
            content = content[:at] + content[at // 2 :]
    return content


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(made(QWEN))


def read_through(path: Path, encoder: Encoder, rng: Rng) -> Counter[str]:
    """Reads the file as anyone would and in a format at random, in small pieces; what came of it, counted."""
    seen: Counter[str] = Counter()
    chunks = list_source_chunks(SourceSpec(path=str(path)), chunk_bytes=rng.choice([50, 1_000, 1 << 24]))
    given = rng.choice([None, *FORMAT_NAMES])
    try:
        form = detect_format(chunks, format_name=given)
    except AboardError as error:
        seen[error.code] += bool(error.fix)
        form = detect_format(chunks, format_name="text")
    for chunk in chunks:
        found = list(read_rows(chunk, form))
        rows = [row for row in found if isinstance(row, DataRow)]
        results = encoder(rows)
        assert [result.location for result in results] == [row.location for row in rows]
        for result in [*results, *(row for row in found if isinstance(row, InvalidRow))]:
            assert result.location.file == str(path)
            assert result.location.line >= 1
            if isinstance(result, EncodedRow):
                assert len(result.ids) == len(result.mask) > 0
                seen["fine"] += 1
            else:
                assert result.why
                seen[result.code] += 1
    return seen


def test_fuzzed_files(tmp_path: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file crashes it; rows come out of those that have some, and every trouble has file and line."""
    monkeypatch.setattr(aboard.trainer.data.intake.jsonl_and_text, "MAX_ROW", LIMIT)
    monkeypatch.setattr(aboard.trainer.data.intake.json_array, "MAX_ROW", LIMIT)
    seen: Counter[str] = Counter()
    for seed in range(FILES):
        rng = random.Random(seed)  # noqa: S311 - the same files each time
        ending = rng.choice(list(_KINDS))
        path = tmp_path / f"{seed}{ending}"
        path.write_bytes(spoiled(rng, _KINDS[ending](rng)))
        path.with_suffix(".bin").write_bytes(b"\x01\x00" * rng.randint(0, 40)) if ending == ".idx" else None
        seen += read_through(path, encoder, rng)
    assert seen["fine"] > FILES
    wanted = {"row-json", "row-utf8", "row-long", "row-type", "row-columns", "row-empty", "row-role", "row-tokens"}
    assert wanted | {"file-cut", "file-unreadable", "data-format"} <= set(seen)
