"""Files to records: every row with its place, whatever the file is and however it is cut."""

import bz2
import gzip
import json
import lzma
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

import aboard.trainer.data.intake.json_array
import aboard.trainer.data.intake.jsonl_and_text
import aboard.trainer.data.intake.source_chunks
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import Untrusted
from aboard.trainer.data.intake.chunks import Chunk
from aboard.trainer.data.intake.read_chunk import detect_format, read_records, read_rows
from aboard.trainer.data.intake.row_formats import RowFormat
from aboard.trainer.data.intake.source_chunks import SourceSpec, list_source_chunks
from aboard.trainer.data.rows import DataRow, InvalidRow

TEXT = RowFormat(name="text", why="given", columns=("text",))


def put(path: Path, content: bytes | str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def lines(*texts: str) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def rows(path: str, **spec: Any) -> list[DataRow | InvalidRow]:
    return [row for chunk in list_source_chunks(SourceSpec(path=path, **spec)) for row in read_rows(chunk, TEXT)]


def told(path: str, **spec: Any) -> list[tuple[int, str | None]]:
    """Line and text of each row, line and code of what is broken."""
    return [(row.location.line, row.text if isinstance(row, DataRow) else row.code) for row in rows(path, **spec)]


def test_lines(tmp_path: Path) -> None:
    """A BOM, CRLF, blank lines and a last line without its end are all read, and lines keep their numbers."""
    path = put(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"text": "one"}\r\n\r\n  \n{"text": "two"}\n{"text": "three"}')
    assert told(path) == [(1, "one"), (4, "two"), (5, "three")]


def test_plain_text(tmp_path: Path) -> None:
    """Each line of a .txt file is a document; blank lines are none, and lines that are no UTF-8 are broken."""
    path = put(tmp_path / "a.txt", b'\xef\xbb\xbfone "1"\r\n\n  two\n\xff\n{"three"')
    assert told(path) == [(1, 'one "1"'), (3, "  two"), (4, "row-utf8"), (5, '{"three"')]
    (chunk,) = list_source_chunks(SourceSpec(path=path))
    assert detect_format([chunk]).name == "text"
    packed = tmp_path / "b.txt.gz"
    packed.write_bytes(gzip.compress(b"one\ntwo\n"))
    assert told(str(packed)) == [(1, "one"), (2, "two")]


def test_a_text_file_of_json_lines_is_not_read_as_text(tmp_path: Path) -> None:
    """Its braces would be learned; what to type names it by what it holds."""
    path = put(tmp_path / "my rows.txt", lines("one", "two"))
    with pytest.raises(AboardError, match="contains JSON lines") as caught:
        list_source_chunks(SourceSpec(path=path))
    assert caught.value.fix == f"mv '{path}' '{tmp_path}/my rows.jsonl'"


def test_text_files_beside_files_with_columns_are_no_data(tmp_path: Path) -> None:
    """They are a README; a directory of nothing else is read."""
    put(tmp_path / "README.txt", "about\n")
    assert told(str(tmp_path)) == [(1, "about")]
    put(tmp_path / "a.jsonl", lines("one"))
    assert told(str(tmp_path)) == [(1, "one")]


@pytest.mark.parametrize(
    ("line", "code", "word"),
    [
        (b'{"text": "a"', "row-json", "character 13"),
        (b'{"text": "a', "row-json", "invalid JSON: Unterminated string starting at character 10"),
        (b'{"text": "\xff"}', "row-utf8", "byte 11 of the line"),
        (b'{"text": "\\ud83d"}', "row-utf8", "a lone surrogate"),
        (b'["text"]', "row-type", "a list"),
        (b"\x00\x00", "row-json", "invalid JSON"),
        (b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "row-json", "nested too deeply"),
        (b'{"text": ' + b"1" * 5_000 + b"}", "row-json", "digits"),
        (b'{"text": 1}', "row-type", "text is a number"),
        (b'{"text": null}', "row-columns", "no column 'text'"),
        (b'{"text": " "}', "row-empty", "text is empty"),
    ],
)
def test_bad_line(tmp_path: Path, line: bytes, code: str, word: str) -> None:
    """A bad line costs a line: it is told with its number, and its neighbours are read."""
    path = put(tmp_path / "a.jsonl", lines("one").encode() + line + b"\n" + lines("two").encode())
    first, broken, last = rows(path)
    assert isinstance(broken, InvalidRow)
    assert (broken.code, broken.location.line) == (code, 2)
    assert str(broken).startswith(f"{path}:2: ")
    assert word in broken.why
    assert isinstance(first, DataRow)
    assert isinstance(last, DataRow)


def test_utf16(tmp_path: Path) -> None:
    """A file in UTF-16 is told once, with the command that mends it."""
    (found,) = rows(put(tmp_path / "a.jsonl", lines("one", "two").encode("utf-16")))
    assert isinstance(found, InvalidRow)
    assert "iconv -f UTF-16" in found.why


def test_pairs_of_escapes_are_characters(tmp_path: Path) -> None:
    """Two escapes that make one character are no halves."""
    assert told(put(tmp_path / "a.jsonl", '{"text": "\\ud83e\\udd89"}\n')) == [(1, "🦉")]


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".json"])
def test_huge_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    """A row beyond the limit is told with its place; lines behind it are read, and keep their numbers."""
    monkeypatch.setattr(aboard.trainer.data.intake.jsonl_and_text, "MAX_ROW", 1 << 20)
    monkeypatch.setattr(aboard.trainer.data.intake.json_array, "MAX_ROW", 1 << 20)
    huge = [{"text": "a"}, {"text": "b" * (5 << 20)}, {"text": "c"}]
    whole = json.dumps(huge) if ending == ".json" else "".join(json.dumps(row) + "\n" for row in huge)
    content = gzip.compress(whole.encode()) if ending.endswith(".gz") else whole.encode()
    found = told(put(tmp_path / f"a{ending}", content))
    assert found == [(1, "a"), (2, "row-long"), (3, "c")][: 2 if ending == ".json" else 3]


@given(
    st.lists(st.sampled_from(["", "{}", '{"text": "x"}', '{"text": "' + "y" * 40 + '"}', "broken"]), max_size=40),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([0, 1]),
    st.integers(min_value=1, max_value=200),
)
def test_any_cut(tmp_path_factory: pytest.TempPathFactory, texts: list[str], end: str, ends: int, every: int) -> None:
    """Cut anywhere, read in any order: the same rows at the same lines as in one piece."""
    folder = tmp_path_factory.mktemp("cut")
    path = put(folder / "a.jsonl", end.join(texts) + end * ends)
    whole = [
        row
        for chunk in list_source_chunks(SourceSpec(path=path), chunk_bytes=1 << 30)
        for row in read_rows(chunk, TEXT)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aboard.trainer.data.intake.source_chunks, "_BLOCK", 64)
        chunks = pickle.loads(pickle.dumps(list_source_chunks(SourceSpec(path=path), chunk_bytes=every)))  # noqa: S301 - our own
    parts = {chunk: list(read_rows(chunk, TEXT)) for chunk in reversed(chunks)}
    assert [row for chunk in chunks for row in parts[chunk]] == whole
    assert sum(chunk.size for chunk in chunks) == Path(path).stat().st_size
    assert [row.location.line for row in whole] == [at for at, text in enumerate(texts, start=1) if text]


@pytest.mark.parametrize(
    ("ending", "pack"),
    [
        pytest.param(".gz", gzip.compress, marks=pytest.mark.ci),
        pytest.param(".bz2", bz2.compress, marks=pytest.mark.ci),
        pytest.param(".xz", lzma.compress, marks=pytest.mark.ci),
        (".zst", lambda content: pa.compress(content, "zstd", asbytes=True)),
    ],
)
def test_compressed(tmp_path: Path, ending: str, pack: Any) -> None:
    """Packed lines are read as they are; a file that was cut off is told at the line where it ends."""
    content = "".join(json.dumps({"text": f"{number} {hash(str(number))}"}) + "\n" for number in range(20_000)).encode()
    packed = pack(content)
    whole = told(put(tmp_path / f"a.jsonl{ending}", packed))
    assert [line for line, _ in whole] == list(range(1, 20_001))
    *fine, (line, code) = told(put(tmp_path / f"b.jsonl{ending}", packed[: len(packed) // 2]))
    assert code in {"file-cut", "row-json"}
    assert line == len(fine) + 1
    assert fine == whole[: len(fine)]


@pytest.mark.parametrize(
    "text",
    [
        '[{"text": "one"}, {"text": "two"}]',
        '[\n  {\n    "text": "one"\n  },\n  {\n    "text": "two"\n  }\n]\n',
        '{"version": 1.5, "data": [{"text": "one"}, {"text": "two"}], "note": null}',
        '\ufeff[{"text": "one"},{"text": "two"}]',
        '{"text": "one"}\n{"text": "two"}\n',
    ],
)
def test_json(tmp_path: Path, text: str) -> None:
    """A list, a list in an object, and JSON lines under another name are read element by element."""
    assert [row.text for row in rows(put(tmp_path / "a.json", text)) if isinstance(row, DataRow)] == ["one", "two"]


def test_json_of_one_row(tmp_path: Path) -> None:
    """An object without a list of rows is itself a row, also when its content is a list."""
    path = put(tmp_path / "a.json", '{"messages": [{"role": "user", "content": "Hi"}]}')
    (record,) = [record for chunk in list_source_chunks(SourceSpec(path=path)) for record in read_records(chunk)]
    assert not isinstance(record, InvalidRow)
    assert list(record[1]) == ["messages"]


@pytest.mark.parametrize(
    ("text", "count", "word"),
    [
        ('[{"text": "one"}, {"text": }]', 1, "line 1 column 28"),
        ('[{"text": "one"},\n {"text": }]', 1, "line 2 column 11"),
        ('[{"text": "one"},\n{"text": "two"}', 2, "the end of the file"),
        ('[{"text": "one"} {"text": "two"}]', 1, "one of , ]"),
        ('[{"text": "one"}] x', 1, "'x'"),
        ('{"data": [{"text": "one"}], 5: 1}', 1, "invalid JSON"),
        ("nonsense", 0, "invalid JSON"),
        ("[" * 100_000, 0, "nested too deeply"),
    ],
)
def test_bad_json(tmp_path: Path, text: str, count: int, word: str) -> None:
    """An error of syntax is told with row, line and column; the rows before it are read."""
    *fine, broken = rows(put(tmp_path / "a.json", text))
    assert len(fine) == count
    assert isinstance(broken, InvalidRow)
    assert broken.location.line == count + 1
    assert word in broken.why


def test_bad_json_row(tmp_path: Path) -> None:
    """A row with a byte that is no UTF-8, or that is no object, is told, and the next one is read."""
    path = put(tmp_path / "a.json", b'[{"text": "a"}, {"text": "\xff"}, 5, {"text": "b"}]')
    assert told(path) == [(1, "a"), (2, "row-utf8"), (3, "row-type"), (4, "b")]


@given(st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=60) | st.integers() | st.none()), max_size=20))
def test_json_as_json_reads_it(tmp_path_factory: pytest.TempPathFactory, items: list[dict[str, Any]]) -> None:
    """Element by element, over block borders, is what json.loads reads at once."""
    path = put(tmp_path_factory.mktemp("json") / "a.json", json.dumps(items, indent=1, ensure_ascii=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aboard.trainer.data.intake.json_array, "_BLOCK", 7)
        found = list(read_records(Chunk(file=Untrusted(path), path=path, store="json")))
    assert [record[1] for record in found if not isinstance(record, InvalidRow)] == items


def test_json_over_block_borders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that a block's end cuts in two is one number, and places are counted through all blocks."""
    monkeypatch.setattr(aboard.trainer.data.intake.json_array, "_BLOCK", 7)
    whole = '{"version": 1234567890123,\n "data": [{"text": "one"},\n  {"text": "two"}, {"text" 3}]}'
    *fine, broken = rows(put(tmp_path / "a.json", whole))
    assert [row.text for row in fine if isinstance(row, DataRow)] == ["one", "two"]
    assert isinstance(broken, InvalidRow)
    assert "line 3 column 28" in broken.why


def table(count: int) -> Any:
    return pa.table({"text": [f"row {at}" for at in range(count)], "extra": list(range(count))})


def test_parquet(tmp_path: Path) -> None:
    """Row groups are the chunks, and rows are numbered through the file."""
    path = str(tmp_path / "a.parquet")
    pq.write_table(table(1_000), path, row_group_size=100)
    chunks = list_source_chunks(SourceSpec(path=path), chunk_bytes=1)
    assert [(chunk.start, chunk.first) for chunk in chunks] == [(at, 100 * at + 1) for at in range(10)]
    found = [row for chunk in chunks for row in read_rows(chunk, TEXT)]
    assert [(row.location.line, row.text) for row in found if isinstance(row, DataRow)] == [
        (at + 1, f"row {at}") for at in range(1_000)
    ]
    assert str(found[16].location) == f"{path} row 17"


def test_parquet_cut_off(tmp_path: Path) -> None:
    """A parquet file without its end is one broken row that says so."""
    pq.write_table(table(100), tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    (found,) = rows(put(tmp_path / "b.parquet", content[:-20]))
    assert isinstance(found, InvalidRow)
    assert found.code == "file-unreadable"
    assert found.location.file.endswith("b.parquet")


def test_parquet_bad_text(tmp_path: Path) -> None:
    """A value that is no UTF-8 costs its row, not its batch."""
    texts = pa.array([b"a", b"\xff", b"c"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    assert told(str(tmp_path / "a.parquet")) == [(1, "a"), (2, "row-utf8"), (3, "c")]


def test_parquet_nulls_are_no_keys(tmp_path: Path) -> None:
    """What a message or a call doesn't have is not there, though a column's structs share their keys."""
    calls = [{"function": {"name": "get", "arguments": {"city": "Paris", "day": None}}}]
    messages = [
        [{"role": "user", "content": "Hi", "name": None}, {"role": "assistant", "tool_calls": calls, "name": "x"}]
    ]
    days = [[{"role": "assistant", "tool_calls": [{"function": {"name": "get", "arguments": {"day": "today"}}}]}]]
    pq.write_table(pa.table({"messages": messages + days}), tmp_path / "a.parquet")
    chunks = list_source_chunks(SourceSpec(path=str(tmp_path / "a.parquet")))
    first, second = read_rows(chunks[0], detect_format(chunks))
    assert isinstance(first, DataRow)
    assert isinstance(second, DataRow)
    assert first.messages is not None
    assert second.messages is not None
    assert first.messages[0] == {"role": "user", "content": "Hi"}
    assert first.messages[1]["name"] == "x"
    assert first.messages[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Paris"}
    assert second.messages[0]["tool_calls"][0]["function"]["arguments"] == {"day": "today"}


@pytest.mark.parametrize("writer", [pa.ipc.new_stream, pa.ipc.new_file])
def test_arrow(tmp_path: Path, writer: Any) -> None:
    """Both of Arrow's formats are read, in chunks of record batches."""
    path = str(tmp_path / "a.arrow")
    with writer(path, table(1).schema) as out:
        for _ in range(5):
            out.write_table(table(10))
    chunks = list_source_chunks(SourceSpec(path=path), chunk_bytes=1)
    assert [chunk.first for chunk in chunks] == [1, 11, 21, 31, 41]
    found = [row for chunk in reversed(chunks) for row in read_rows(chunk, TEXT)]
    assert sorted(row.location.line for row in found) == list(range(1, 51))
    assert all(isinstance(row, DataRow) for row in found)


def test_directory(tmp_path: Path) -> None:
    """A directory is read in the order of its names, deep down, without hidden files and what holds no rows."""
    for name, text in [("b/x.jsonl", "two"), ("a.jsonl.gz", "one"), ("b/.hidden.jsonl", "no"), ("c.jsonl", "three")]:
        content = lines(text).encode()
        put(tmp_path / name, gzip.compress(content) if name.endswith(".gz") else content)
    put(tmp_path / "state.json", "{}")
    put(tmp_path / "README.md", "# no rows")
    assert [text for _, text in told(str(tmp_path))] == ["one", "two", "three"]


def test_directory_with_splits(tmp_path: Path) -> None:
    """Where names tell splits apart the training files are read, or the split that was asked for."""
    for name in ("train-0.jsonl", "train-1.jsonl", "test.jsonl", "val/part.jsonl"):
        put(tmp_path / name, lines(name))
    assert [text for _, text in told(str(tmp_path))] == ["train-0.jsonl", "train-1.jsonl"]
    assert [text for _, text in told(str(tmp_path), split="test")] == ["test.jsonl"]
    assert [text for _, text in told(str(tmp_path), split="validation")] == ["val/part.jsonl"]
    with pytest.raises(AboardError, match="splits by file name: test, train, validation") as error:
        told(str(tmp_path), split="other")
    assert error.value.code == "data-split"


@pytest.mark.parametrize(
    ("name", "code"), [("gone.jsonl", "data-missing"), ("notes.doc", "data-ending"), ("empty", "data-missing")]
)
def test_no_rows_to_find(tmp_path: Path, name: str, code: str) -> None:
    """A path that can't be read is an error with a name and something to type."""
    put(tmp_path / "notes.doc", "x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(AboardError) as error:
        list_source_chunks(SourceSpec(path=str(tmp_path / name)))
    assert error.value.code == code
    assert error.value.fix


def test_a_file_name_with_a_typing_mistake(tmp_path: Path) -> None:
    """The file that is there under nearly that name is named."""
    put(tmp_path / "train.jsonl", "x")
    with pytest.raises(AboardError) as error:
        list_source_chunks(SourceSpec(path=str(tmp_path / "trian.jsonl")))
    assert error.value.fix == f"did you mean '{tmp_path}/train.jsonl'?"


def test_empty_file(tmp_path: Path) -> None:
    """An empty file has no rows and no chunks; nobody is troubled."""
    assert rows(put(tmp_path / "a.jsonl", "")) == []
    assert rows(put(tmp_path / "a.json", "")) == []
