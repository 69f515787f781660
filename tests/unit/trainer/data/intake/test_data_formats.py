"""Records to rows: the format is recognised and said, or given; a row that doesn't fit says how."""

import json
import re
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aboard.commands.data.prepare_data import DataCheckRequest, inspect_data
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import Untrusted
from aboard.trainer.data.intake.read_chunk import detect_format, read_rows
from aboard.trainer.data.intake.record_to_row import ALPACA_INPUT_PROMPT, build_row
from aboard.trainer.data.intake.row_formats import RowFormat, recognize_format
from aboard.trainer.data.intake.source_chunks import SourceSpec, list_source_chunks
from aboard.trainer.data.rows import DataRow, InvalidRow, RowLocation, fingerprint_row
from aboard.trainer.data.sampling.validation_split import SplitSide

HERE = RowLocation(file=Untrusted("a.jsonl"), line=7)
ASKED = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}


def shaped(fields: dict[str, Any], **given: Any) -> DataRow | InvalidRow:
    return build_row((HERE, fields), recognize_format([fields], **given))


def row(fields: dict[str, Any], **given: Any) -> DataRow:
    found = shaped(fields, **given)
    assert isinstance(found, DataRow), found
    return found


@pytest.mark.parametrize(
    ("fields", "name", "why"),
    [
        ({"instruction": "a", "input": "", "output": "b"}, "alpaca", "columns instruction, output"),
        ({"conversations": [{"from": "human", "value": "a"}]}, "sharegpt", "conversations with from and value"),
        ({"conversations": [ASKED]}, "messages", "conversations with role and content"),
        ({"messages": [ASKED], "tools": None}, "messages", "messages with role and content"),
        ({"prompt": "a", "completion": "b"}, "prompt-completion", "columns prompt, completion"),
        ({"text": "a", "url": "b"}, "text", "a column text"),
        ({"input_ids": [1, 2]}, "tokens", "a column input_ids"),
    ],
)
def test_recognised(fields: dict[str, Any], name: str, why: str) -> None:
    """Columns tell the format, and the reason is said."""
    found = recognize_format([{"other": 1}, fields])
    assert (found.name, found.why) == (name, why)


def test_ambiguous() -> None:
    """Columns of two formats are an error that says how to choose, and choosing settles it."""
    fields = {"instruction": "a", "output": "b", "text": "a b"}
    with pytest.raises(AboardError) as error:
        recognize_format([fields])
    assert error.value.code == "data-format"
    assert error.value.fix == "choose one: format: alpaca or format: text"
    assert row(fields, format_name="alpaca").kind == "pair"
    assert row(fields, format_name="text").kind == "text"


@pytest.mark.parametrize(
    ("fields", "given", "seen", "fix"),
    [
        ({"body": "a", "n": 1}, {}, "no format fits the columns body, n", "text_column: body"),
        ({"chosen": "a", "rejected": "b"}, {}, "preferences", "prompt and completion"),
        ({"text": "a"}, {"format_name": "alpacca"}, "did you mean 'alpaca'?", "format: alpaca"),
        (
            {"text": "a"},
            {"format_name": "alpaca", "text_column": "x"},
            "text_column needs the format text",
            "remove one",
        ),
    ],
)
def test_no_format(fields: dict[str, Any], given: dict[str, Any], seen: str, fix: str) -> None:
    """What is no format says what was seen, and what to write."""
    with pytest.raises(AboardError) as error:
        recognize_format([fields], **given)
    assert seen in error.value.seen
    assert fix in error.value.fix


def test_no_rows_no_format() -> None:
    """Without a row nothing is recognised, and that is said."""
    with pytest.raises(AboardError, match="no row could be read"):
        recognize_format([])


def test_text_column() -> None:
    """The column that text_column names is the text."""
    assert row({"text": "no", "body": "yes"}, text_column="body").text == "yes"


def test_alpaca() -> None:
    """Instruction and input are asked, in Stanford's words for a pair and as they are for a chat."""
    found = row({"instruction": "Add {input}", "input": "1 {instruction} 2", "output": "3", "system": "Be brief"})
    words = ALPACA_INPUT_PROMPT.split("{input}")[0].replace("{instruction}", "Add {input}")
    assert found.prompt == f"Be brief\n\n{words}1 {{instruction}} 2\n\n### Response:\n"
    assert found.completion == "3"
    assert found.messages == (
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Add {input}\n\n1 {instruction} 2"},
        {"role": "assistant", "content": "3"},
    )
    plain = row({"instruction": "Say hi", "input": None, "output": "hi"})
    assert plain.prompt is not None
    assert plain.prompt.endswith("### Instruction:\nSay hi\n\n### Response:\n")
    assert "### Input" not in plain.prompt


def test_sharegpt() -> None:
    """Senders become roles, a call's JSON a tool call, the system column the first message."""
    turns = [
        {"from": "human", "value": "Weather?"},
        {"from": "function_call", "value": '{"name": "get", "arguments": {"city": "Paris"}}'},
        {"from": "observation", "value": "sunny"},
        {"from": "gpt", "value": "Sunny."},
    ]
    found = row({"conversations": turns, "system": "Be brief", "tools": '[{"name": "get"}]'})
    call = {"type": "function", "function": {"name": "get", "arguments": {"city": "Paris"}}}
    assert found.messages == (
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
        {"role": "assistant", "content": "Sunny."},
    )
    assert found.tools == ({"name": "get"},)


def test_messages() -> None:
    """Nulls are dropped, text parts joined, arguments in a string become an object, weights are kept apart."""
    call = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": '{"city": "Paris"}'}}
    found = row(
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "He"}, {"type": "text", "text": "y"}],
                    "name": None,
                },
                {"role": "assistant", "content": None, "tool_calls": [call], "weight": 0},
                {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
                {"role": "assistant", "content": "Sunny.", "weight": 1},
            ]
        }
    )
    assert found.messages is not None
    assert found.messages[0] == {"role": "user", "content": "Hey"}
    assert found.messages[1]["content"] == ""
    assert found.messages[1]["tool_calls"] == [call | {"function": {"name": "get", "arguments": {"city": "Paris"}}}]
    assert found.trains == (True, False, True, True)
    assert row({"messages": [ASKED, ANSWER]}).trains is None


def test_pairs_of_messages() -> None:
    """Prompt and completion as lists of messages are a chat of which only the completion trains."""
    found = row({"prompt": [ASKED, ANSWER, ASKED], "completion": [ANSWER]})
    assert found.kind == "chat"
    assert found.messages == (ASKED, ANSWER, ASKED, ANSWER)
    assert found.trains == (False, False, False, True)


@pytest.mark.parametrize(
    ("given", "fields", "code", "why"),
    [
        ("alpaca", {"text": "a"}, "row-columns", "no column 'instruction'; the row has text"),
        ("alpaca", {"instruction": "a", "output": 5}, "row-type", "output is a number"),
        ("alpaca", {"instruction": "", "output": ""}, "row-empty", "are empty"),
        ("alpaca", {"instruction": "a", "output": "b", "history": [["c", "d"]]}, "row-type", "history"),
        ("messages", {"messages": "Hi"}, "row-type", "messages is a string, where a list was expected"),
        ("messages", {"messages": []}, "row-empty", "empty list"),
        ("messages", {"messages": ["Hi"]}, "row-type", "turn 1 of messages is a string"),
        (
            "messages",
            {"messages": [{"role": "boss", "content": "a"}]},
            "row-role",
            "message 1 of messages has the role",
        ),
        ("messages", {"messages": [{"role": "user"}]}, "row-columns", "message 1 of messages has no content"),
        ("messages", {"messages": [ASKED | {"content": [{"type": "image"}]}]}, "row-type", "not text ('image')"),
        ("messages", {"messages": [ANSWER | {"weight": 0.5}]}, "row-type", "it can be 0 or 1"),
        ("messages", {"messages": [ANSWER | {"tool_calls": [5]}]}, "row-type", "has no function name"),
        ("messages", {"messages": [ASKED], "tools": "{"}, "row-json", "tools should contain JSON"),
        ("messages", {"messages": [ASKED], "tools": 5}, "row-type", "tools is a number"),
        ("sharegpt", {"conversations": [{"from": "ghost", "value": "a"}]}, "row-role", "from 'ghost'"),
        ("sharegpt", {"conversations": [{"from": "gpt", "value": None}]}, "row-type", "is null"),
        ("sharegpt", {"conversations": [{"from": "function_call", "value": "x"}]}, "row-json", "should contain JSON"),
        ("prompt-completion", {"prompt": "a", "completion": [ANSWER]}, "row-type", "completion is a list"),
        ("prompt-completion", {"prompt": "", "completion": ""}, "row-empty", "are empty"),
        ("tokens", {"input_ids": ["a"]}, "row-type", "whole numbers"),
        ("tokens", {"input_ids": [[1], [2, 3]]}, "row-type", "whole numbers"),
        ("tokens", {"input_ids": []}, "row-empty", "is empty"),
        ("tokens", {"input_ids": [-1]}, "row-tokens", "-1 is not a token id"),
        ("tokens", {"input_ids": [2**63]}, "row-tokens", "not a token id"),
        ("tokens", {"input_ids": [1, 2], "labels": [2, 3]}, "row-tokens", "don't shift them"),
        (
            "tokens",
            {"input_ids": [1, 2], "loss_mask": [1]},
            "row-tokens",
            "loss_mask has 1 numbers, but input_ids has 2",
        ),
    ],
)
def test_misshapen(given: str, fields: dict[str, Any], code: str, why: str) -> None:
    """A row that doesn't fit the format says its place, its kind of trouble, and what was seen."""
    found = shaped(fields, format_name=given)
    assert isinstance(found, InvalidRow)
    assert (found.location, found.code) == (HERE, code)
    assert why in found.why


def test_tokens() -> None:
    """Labels, a loss mask and padding say which tokens are there and which train."""
    labelled = row({"input_ids": [5, 6, 7, 0], "labels": [-100, 6, 7, -100], "attention_mask": [1, 1, 1, 0]})
    assert labelled.ids is not None
    assert labelled.mask is not None
    assert labelled.ids.tolist() == [5, 6, 7]
    assert labelled.ids.dtype == np.uint32
    assert labelled.mask.tolist() == [False, True, True]
    masked = row({"input_ids": [5, 6], "loss_mask": [0, 1]})
    assert masked.mask is not None
    assert masked.mask.tolist() == [False, True]
    assert row({"input_ids": [5, 6]}).mask is None


def test_tokens_of_parquet(tmp_path: Path) -> None:
    """Lists of numbers in Parquet are read without a Python object for each."""
    columns = {"input_ids": [[1, 2, 3], [4], None, [5, 6]], "labels": [[-100, 2, 3], [4], None, [-100, -100]]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=3)
    chunks = list_source_chunks(SourceSpec(path=str(tmp_path / "a.parquet")))
    found = [each for chunk in chunks for each in read_rows(chunk, detect_format(chunks))]
    assert [each.ids.tolist() for each in found if isinstance(each, DataRow) and each.ids is not None] == [
        [1, 2, 3],
        [4],
        [5, 6],
    ]
    assert isinstance(found[2], InvalidRow)
    assert (found[2].location.line, found[2].code) == (3, "row-columns")


def write_megatron(folder: Path, documents: list[list[list[int]]], *, kind: int, dtype: str, table: bool) -> str:
    """The files as their writers make them: documents of sequences, with a table of documents or without."""
    sequences = [sequence for document in documents for sequence in document]
    arrays = [np.array(sequence, dtype) for sequence in sequences]
    (folder / "a.bin").write_bytes(b"".join(array.tobytes() for array in arrays))
    sizes = np.array([len(array) for array in arrays], "<i4")
    places = np.concatenate([[0], np.cumsum(sizes * np.dtype(dtype).itemsize)])[: len(sizes)].astype("<i8")
    borders = np.concatenate([[0], np.cumsum([len(document) for document in documents])]).astype("<i8")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQ", 1, kind, len(sizes))
    head += struct.pack("<Q", len(borders)) if table else b""
    (folder / "a.idx").write_bytes(head + sizes.tobytes() + places.tobytes() + (borders.tobytes() if table else b""))
    return str(folder / "a.idx")


@pytest.mark.parametrize(("kind", "dtype"), [(8, "<u2"), (4, "<i4"), (5, "<i8"), (1, "<u1")])
@pytest.mark.parametrize("layout", ["megatron", "fairseq"])
def test_megatron(tmp_path: Path, kind: int, dtype: str, layout: str) -> None:
    """Both layouts are read as they are, also in pieces, by the name of either file."""
    documents = [[[1, 2, 3], [4]], [[5]], [[6, 7], [8, 9]]]
    table = layout == "megatron"
    path = write_megatron(tmp_path, documents, kind=kind, dtype=dtype, table=table)
    wanted = [[1, 2, 3, 4], [5], [6, 7, 8, 9]] if table else [[1, 2, 3], [4], [5], [6, 7], [8, 9]]
    for every in (1, 1 << 20):
        chunks = list_source_chunks(SourceSpec(path=path.replace(".idx", ".bin")), chunk_bytes=every)
        found = [each for chunk in chunks for each in read_rows(chunk, detect_format(chunks))]
        assert [each.ids.tolist() for each in found if isinstance(each, DataRow) and each.ids is not None] == wanted
        assert [each.location.line for each in found] == list(range(1, len(wanted) + 1))


def test_megatron_without_all_its_tokens(tmp_path: Path) -> None:
    """A document that the .bin file has not got is told; those that it has are read."""
    path = write_megatron(tmp_path, [[[1, 2]], [[3, 4]]], kind=8, dtype="<u2", table=True)
    (tmp_path / "a.bin").write_bytes((tmp_path / "a.bin").read_bytes()[:-1])
    (chunk,) = list_source_chunks(SourceSpec(path=path))
    fine, broken = read_rows(chunk, detect_format([chunk]))
    assert isinstance(fine, DataRow)
    assert isinstance(broken, InvalidRow)
    assert "the .bin file has 7 bytes" in broken.why


@pytest.mark.parametrize("content", [b"", b"MMIDIDX", b"MMIDIDX\x00\x00" + b"\x01" * 17, b"x" * 100])
def test_megatron_that_is_none(tmp_path: Path, content: bytes) -> None:
    """An index of another make is one broken row."""
    (tmp_path / "a.idx").write_bytes(content)
    (tmp_path / "a.bin").write_bytes(b"")
    (chunk,) = list_source_chunks(SourceSpec(path=str(tmp_path / "a.idx")))
    (found,) = read_rows(chunk, RowFormat(name="tokens", why="given", columns=("input_ids",)))
    assert isinstance(found, InvalidRow)
    assert found.code == "file-unreadable"


def test_parts() -> None:
    """A share of the rows is validation, by content alone, whatever the order; what is broken is told once."""
    rows: list[DataRow | InvalidRow] = [
        DataRow(location=HERE, kind="text", text=str(number)) for number in range(2_000)
    ]
    broken = InvalidRow(location=HERE, code="row-json", why=Untrusted("x"))
    train = list(SplitSide(name="train", share=0.1).of([*rows, broken]))
    held = list(SplitSide(name="validation", share=0.1).of([*reversed(rows), broken]))
    assert 140 < len(held) < 260
    assert broken in train
    assert broken not in held
    assert {each.text for each in [*train, *held] if isinstance(each, DataRow)} == {
        str(number) for number in range(2_000)
    }
    assert len(train) + len(held) == 2_001


def test_fingerprints() -> None:
    """Equal content has one fingerprint wherever it stands; other content has another."""
    there = RowLocation(file=Untrusted("b.parquet"), line=1, unit="row")
    assert fingerprint_row(row({"messages": [ASKED, ANSWER]})) == fingerprint_row(
        DataRow(location=there, kind="chat", messages=(dict(reversed(ASKED.items())), ANSWER))
    )
    rows = [
        row({"messages": [ASKED, ANSWER]}),
        row({"messages": [ASKED, ANSWER], "tools": [{"name": "get"}]}),
        row({"text": "Hi"}),
        row({"prompt": "Hi", "completion": ""}),
        row({"prompt": "", "completion": "Hi"}),
        row({"input_ids": [1]}),
        row({"input_ids": [1], "loss_mask": [0]}),
    ]
    assert len({fingerprint_row(each) for each in rows}) == len(rows)


def test_rows_survive_json() -> None:
    """Whatever was read can be written down again for a report."""
    assert json.dumps(row({"messages": [ASKED, ANSWER]}).messages)


@pytest.mark.parametrize(
    ("name", "text"), [("qa.csv", 'question,answer\nwho?,"me, you"\n'), ("qa.tsv", "question\tanswer\nwho?\tme, you\n")]
)
def test_the_fixes_turn_a_table_with_other_columns_into_rows(tmp_path: Path, name: str, text: str) -> None:
    """First into lines of JSON, then with the names that a format has."""
    (tmp_path / name).write_text(text)
    for file in (name, "qa.jsonl"):
        with pytest.raises(AboardError) as error:
            inspect_data(DataCheckRequest(files=(str(tmp_path / file),), command="aboard data"))
        subprocess.run(error.value.fix, shell=True, check=True)  # noqa: S602 - a fix is typed into a shell
    assert json.loads((tmp_path / "qa.renamed.jsonl").read_text()) == {"prompt": "who?", "completion": "me, you"}


def test_no_fix_writes_to_a_file_that_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell empties it first: its rows would be lost, also if it is the file that the command reads."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "qa.csv",
        "qa.jsonl",
        "mixed.jsonl",
        "mixed.messages.jsonl",
        "mixed.others.jsonl",
        "mixed.others-2.jsonl",
    ):
        Path(name).write_text('{"prompt": "a", "completion": "b"}\n{"messages": [{"role": "user", "content": "c"}]}\n')
    for name, outputs in (
        ("qa.csv", ["qa-2.jsonl"]),
        ("mixed.jsonl", ["mixed.messages-2.jsonl", "mixed.others-3.jsonl"]),
    ):
        with pytest.raises(AboardError) as error:
            inspect_data(DataCheckRequest(files=(name,), command="aboard data"))
        assert re.findall(r" > (\S+)", error.value.fix) == outputs
    path = Path("once.jsonl")
    path.write_text('{"prompt": "a", "completion": "b"}\n' * 4)
    report = inspect_data(DataCheckRequest(files=(str(path),), command="aboard data"))
    fix = next(each.fix for each in report.findings if each.code == "data-duplicates")
    assert f"awk '!seen[$0]++' {path} > once-2.jsonl " in fix
