"""Token shards on disk: read at any place, compared with their manifest, and written by anybody."""

import json
import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from preparing import SHARD, Bytes, Size, source, text_of, write_rows

from aboard.commands.train.input_directory import build_sync_directory
from aboard.diagnoses import AboardError
from aboard.trainer.data.sampling.sequence_packing import build_packed_sequences
from aboard.trainer.data.store.shard_manifest import format_manifest, read_manifest
from aboard.trainer.data.store.token_shards import TokenShards
from aboard.trainer.data.tokenize_workers.prepare_data import PreparedData, prepare_data

ROWS = 400


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """Several shards of several units each, which none of these tests changes."""
    folder = tmp_path_factory.mktemp("shards")
    rows = source(write_rows(folder / "rows.jsonl", ROWS))
    return prepare_data([rows], Bytes(), folder / "cache", max_length=100, workers=1, shard_bytes=SHARD)


@pytest.fixture
def copy(made: PreparedData, tmp_path: Path) -> Path:
    """The shards once more, to be damaged."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in made.shards.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.ci
def test_each_document_is_what_was_written(made: PreparedData) -> None:
    """Tokens, mask and place of every row, over the borders of units, shards and bytes of mask."""
    assert len(made.shards.manifest.shards) > 3
    assert len(made.shards) == ROWS
    for number in range(ROWS):
        document = made.shards.document(number)
        text = text_of(number + 1).encode()
        assert document.ids.astype(np.uint8).tobytes() == text
        assert document.mask.tolist() == [False, *(letter != ord(" ") for letter in text[1:])]
        assert (document.location.line, Path(document.location.file.raw()).name) == (number + 1, "rows.jsonl")


def test_there_is_no_document_outside(made: PreparedData) -> None:
    """Neither before the first nor behind the last."""
    for number in (-1, ROWS):
        with pytest.raises(IndexError):
            made.shards.document(number)
    with pytest.raises(IndexError):
        made.bins.bin(len(made.bins))


def test_bins_hold_every_token_once(made: PreparedData) -> None:
    """Each bin has its documents' tokens, boundaries and supervised count, and together they have all."""
    seen: dict[int, bytes] = {}
    for number in range(len(made.bins)):
        found = made.bins.bin(number)
        assert len(found.ids) <= 100
        assert found.supervised == found.mask.sum() == made.bins.counts(number)[1]
        ends = np.cumsum(found.lengths)
        for document, start, end in zip(found.documents, ends - found.lengths, ends, strict=True):
            assert not found.mask[start]
            seen[document] = seen.get(document, b"") + found.ids[start:end].astype(np.uint8).tobytes()
    lost = made.bins.manifest.losses.tokens_lost
    assert sum(map(len, seen.values())) == made.shards.manifest.tokens - lost
    # Pieces of a split text come in the order of bins, so only those of one piece are compared as they stand.
    short = [number for number in range(ROWS) if 1 < len(text_of(number + 1)) <= 100]
    assert all(seen[number] == text_of(number + 1).encode() for number in short)


def test_another_length_packs_again_without_the_source(made: PreparedData) -> None:
    """Nothing is tokenized for it, and the bins of the first length stay."""
    Path(made.shards.manifest.origins[0].name.raw()).rename(made.shards.folder.parent / "away")
    try:
        longer = build_packed_sequences(made.shards, max_length=500)
        padded = build_packed_sequences(made.shards, max_length=5000, packing="padded")
    finally:
        (made.shards.folder.parent / "away").rename(made.shards.manifest.origins[0].name.raw())
    assert longer.manifest.full > 0.98
    assert len(padded) == ROWS
    assert [padded.bin(number).documents for number in (0, 7)] == [(0,), (7,)]
    assert made.bins.bin(0).lengths


def test_memory_does_not_grow_with_the_set(made: PreparedData, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed a few documents at a time, bins hold the same documents and stay as full."""
    monkeypatch.setattr("aboard.trainer.data.sampling.sequence_packing._WINDOW", 150)
    small = build_packed_sequences(made.shards, max_length=400)
    assert small.manifest.tokens + small.manifest.losses.tokens_lost == made.shards.manifest.tokens
    assert small.manifest.full > 0.95


@pytest.mark.parametrize("ending", ["tokens", "mask", "index.parquet"])
def test_a_changed_byte_is_found_by_hash(copy: Path, ending: str) -> None:
    """The error names the file and what to type."""
    victim = copy / f"00001.{ending}"
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(AboardError, match=f"00001.{ending}.*sha256") as caught:
        TokenShards(copy).verify()
    assert caught.value.code == "data-shard-damaged"
    assert caught.value.fix.startswith(f"rm -r {copy}")


@pytest.mark.parametrize("ending", ["tokens", "mask", "index.parquet"])
def test_a_cut_or_missing_file_is_found_when_opened(copy: Path, ending: str) -> None:
    """By its size, which costs nothing."""
    victim = copy / f"00000.{ending}"
    os.truncate(victim, victim.stat().st_size - 1)
    with pytest.raises(AboardError, match=f"00000.{ending}.*bytes"):
        TokenShards(copy)
    victim.unlink()
    with pytest.raises(AboardError, match=f"00000.{ending}.*can't be read"):
        TokenShards(copy)


def test_a_file_that_shrinks_while_it_is_read(copy: Path) -> None:
    """Also then an error that names it, not the tokens of something else."""
    shards = TokenShards(copy)
    shards.document(0)
    os.truncate(copy / "00000.tokens", 1)
    with pytest.raises(AboardError, match="ends before byte"):
        shards.document(1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("[]", "not a manifest of"),
        ('{"format": "aboard-token-shards", "version": 2}', "version 1"),
        ('{"format": "aboard-token-shards", "version": 1}', "missing"),
    ],
)
def test_a_manifest_that_cannot_be_used_says_why(tmp_path: Path, text: str, why: str) -> None:
    """Not one of ours, another version, or not whole."""
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(AboardError, match=why):
        read_manifest(tmp_path)


def test_a_manifest_names_no_file_elsewhere(copy: Path) -> None:
    """One that came over the network can't make us read another file."""
    path = copy / "manifest.json"
    path.write_text(path.read_text().replace("00000.tokens", "../00000.tokens"))
    with pytest.raises(AboardError, match="not a plain file name"):
        read_manifest(copy)


def test_manifests_survive_the_disk(made: PreparedData) -> None:
    """What is read is what was written."""
    manifest = read_manifest(made.shards.folder)
    assert format_manifest(manifest) == (made.shards.folder / "manifest.json").read_text()


def test_a_set_that_others_wrote(tmp_path: Path) -> None:
    """With the columns that docs/token-shards.md asks for and no more, as Spark would write it."""
    tokens = np.arange(70_000, 70_010, dtype="<u4")
    (tmp_path / "part-0.tokens").write_bytes(tokens.tobytes())
    table = {
        "offset": pa.array([0, 4], pa.uint64()),
        "length": pa.array([4, 6], pa.uint32()),
        "supervised": pa.array([3, 5], pa.uint32()),
    }
    pq.write_table(pa.table(table), tmp_path / "part-0.parquet")

    def entry(name: str) -> dict[str, str | int]:
        data = (tmp_path / name).read_bytes()
        return {"name": name, "bytes": len(data), "sha256": sha256(data).hexdigest()}

    shard = {
        "documents": 2,
        "tokens": 10,
        "supervised": 8,
        "token_file": entry("part-0.tokens"),
        "mask_file": None,
        "index_file": entry("part-0.parquet"),
    }
    manifest = {
        "format": "aboard-token-shards",
        "version": 1,
        "token_bytes": 4,
        "vocabulary": 100_000,
        "encoder": "spark",
        "shards": [shard],
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    shards = TokenShards(tmp_path)
    shards.verify()
    assert shards.document(1).ids.tolist() == list(range(70_004, 70_010))
    assert shards.document(1).mask.tolist() == [False] + [True] * 5
    assert build_packed_sequences(shards, max_length=10).bin(0).supervised == 8


@pytest.mark.ci
def test_large_vocabularies_take_four_bytes(tmp_path: Path) -> None:
    """And the others two; a token that the vocabulary doesn't have is a broken row, not another token."""
    rows = source(write_rows(tmp_path / "rows.jsonl", 3))
    large = prepare_data([rows], Bytes("large", Size(70_000)), tmp_path, max_length=100, workers=1)
    few = prepare_data([rows], Bytes("few", Size(100)), tmp_path, max_length=100, workers=1)
    assert large.shards.manifest.token_bytes == 4
    assert large.shards.document(2).ids.astype(np.uint8).tobytes() == text_of(3).encode()
    assert few.shards.manifest.broken == {"token-unknown": 3}
    assert few.shards.manifest.broken_first[0].why == "token 120 is not in the tokenizer's vocabulary of 100"
    assert len(few.bins) == 0


def test_nodes_with_the_same_shards_have_no_gap(made: PreparedData, tmp_path: Path) -> None:
    """Proven by hash: a missing file comes before one with another content."""
    directory = build_sync_directory(made.shards.folder, hashes=tmp_path / "hashes.json")
    wanted = directory.files
    assert [file.name for file in wanted] == [*(file.name for file in made.shards.manifest.files), "manifest.json"]
    whole = {file.name: file for file in wanted}
    assert directory.find_gaps(whole) == directory.find_gaps({**whole, "more": wanted[0]}) == []
    found = {name: file for name, file in whole.items() if name != "00000.mask"}
    found["00001.tokens"] = replace(whole["00001.tokens"], sha256="0" * 64)
    found["00000.tokens"] = replace(whole["00000.tokens"], sha256="0" * 64)
    gaps = [whole["00000.mask"], whole["00000.tokens"], whole["00001.tokens"]]
    assert directory.find_gaps(found) == gaps
