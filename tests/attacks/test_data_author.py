"""Attacks by the author of a data set or a tokenizer: small files that describe gigabytes."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aboard.diagnoses import AboardError
from aboard.trainer.data.store import shard_index
from aboard.trainer.data.store.shard_index import ShardIndex
from aboard.trainer.data.tokens.text_growth import MOST_GROWTH, measure_growth
from aboard.trainer.data.tokens.tokenizer_parts import load_vocabulary

ROWS = 260
# Reads all rows with a limit of 512 MB for a batch, where one of 256 rows takes 1.3 GB; prints the rows, the broken
# ones and whether the process stayed below 1.1 GB.
READ = """
import resource, sys
from aboard.trainer.data.intake import parquet_arrow
from aboard.trainer.data.intake.read_chunk import read_records
from aboard.trainer.data.intake.source_chunks import SourceSpec, list_source_chunks
parquet_arrow.BATCH_BYTES = 512 << 20
records = (record for chunk in list_source_chunks(SourceSpec(path=sys.argv[1])) for record in read_records(chunk))
good = [isinstance(record, tuple) for record in records]
print(len(good), good.count(False), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1100 << 10)
"""


@pytest.mark.parametrize("name", ["bomb.parquet", "list.arrow"])
def test_a_small_file_that_describes_gigabytes_is_read_in_bounded_memory(tmp_path: Path, name: str) -> None:
    """Rows that share one large value are read one by one if a batch of them would take too much memory."""
    path = tmp_path / name
    indices = pa.array([0] * ROWS, pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["a" * (5 << 20)]))
    if name.startswith("list"):
        column = pa.ListArray.from_arrays(pa.array(range(ROWS + 1), pa.int32()), column)
    table = pa.table({"text": column})
    if name.endswith("parquet"):
        pq.write_table(table, path, compression="zstd", store_schema=False)
    else:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
            writer.write_table(table)
    assert path.stat().st_size < 20_000
    done = subprocess.run([sys.executable, "-c", READ, path], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == [str(ROWS), "0", "True"], done.stderr


def test_an_index_of_token_shards_with_huge_row_groups_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of rows is compared with a limit before any of them is read."""
    monkeypatch.setattr(shard_index, "MAX_ROW_GROUP", 1000)
    columns = {name: pa.array([0] * 1001, pa.uint64()) for name in ("offset", "length", "supervised")}
    pq.write_table(pa.table(columns), tmp_path / "index.parquet")
    with pytest.raises(AboardError, match="1,001 rows, more than 1,000"):
        ShardIndex(tmp_path / "index.parquet")


@pytest.mark.parametrize("pattern", [{"String": "a"}, {"Regex": ""}])
def test_a_tokenizer_whose_replacements_multiply_is_refused(
    tmp_path: Path, pattern: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine replacements of a letter by ten of it make a gigabyte of each letter: refused before anything is encoded.

    Also if it is on the hub, of which only the download is replaced here.
    """
    step = {"type": "Replace", "pattern": pattern, "content": "a" * 10}
    content = {"normalizer": {"type": "Sequence", "normalizers": [step] * 9}, "model": {"type": "BPE"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(AboardError, match="times as long") as refused:
        load_vocabulary(str(tmp_path))
    assert refused.value.code == "data-tokenizer"
    monkeypatch.setattr("aboard.trainer.data.tokens.tokenizer_parts.is_hub_reachable", lambda: True)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda _name, file: str(tmp_path / file))
    with pytest.raises(AboardError, match="times as long"):
        load_vocabulary("hub:eve/tokenizer")


def test_the_replacements_of_usual_tokenizers_are_accepted() -> None:
    """Those of Llama, ALBERT and T5 are far below the limit."""
    replace = [("``", '"'), ("''", '"'), (" ", "\u2581")]
    steps = [{"type": "Replace", "pattern": {"String": old}, "content": new} for old, new in replace]
    regex = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    usual = {"type": "Sequence", "normalizers": [{"type": "Precompiled"}, *steps, regex, {"type": "Lowercase"}]}
    assert measure_growth(usual) < MOST_GROWTH / 10
