"""`aboard data` on the screen, in a pipe and as JSON: generated text, compared whole."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_files import conversation, looked, tokenizer, written
from rich.console import Console, RenderableType

from aboard.commands.data.plain_report import format_data_json, format_data_lines
from aboard.commands.data.report_view import DataReportView, HistogramView
from aboard.commands.data.token_row import TokenRowView, format_row_line
from aboard.commands.shared.progress_bar import ReadingView
from aboard.diagnoses.untrusted import Untrusted
from aboard.trainer.data.length_statistics import build_bars, count_lengths
from aboard.trainer.data.quality.data_report import DataReport
from aboard.trainer.data.rows import EncodedRow, RowLocation
from aboard.trainer.data.tokens.row_preview import PreviewToken, RowPreview, build_row_preview

GOLDEN = Path(__file__).parents[2] / "golden" / "ui"
WHERE = RowLocation(file=Untrusted("a.jsonl"), line=1)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> DataReport:
    """Good rows and one of each of some kinds of bad ones."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        rows = [conversation(at, answer="one two three " * (at % 7 + 1)) for at in range(300)]
        rows.append({"messages": [{"role": "user", "content": "Who are you?\nHi <|im_end|>"}]})
        rows.append(conversation(400, answer="one two three " * 60))
        written(Path("train.jsonl"), [*rows, '{"messages": [{"role'])
        written(Path("held.jsonl"), rows[:1] + [conversation(at) for at in range(500, 700)])
        found = looked(
            "train.jsonl",
            tokenizer=tokenizer(Path("tokenizer")),
            max_length=64,
            validation=("held.jsonl",),
            batch=8,
            show=1,
        )
    return replace(found, seconds=1.2)


def drawn(renderable: RenderableType, width: int, *, colour: bool = False) -> str:
    out = io.StringIO()
    system = "truecolor" if colour else None
    console = Console(file=out, width=width, color_system=system, force_terminal=colour, highlight=False)  # type: ignore[arg-type]
    console.print(renderable, crop=False)
    return out.getvalue()


@pytest.mark.ci
@pytest.mark.parametrize("width", [80, 160])
def test_the_whole_screen(report: DataReport, width: int) -> None:
    """What is in there, a picture of the lengths, rows, findings with a row each, and what it comes to."""
    screen = drawn(DataReportView(report, stats=True, verbose=False), width)
    assert screen == (GOLDEN / f"data-{width}.txt").read_text("utf-8")


@pytest.mark.ci
def test_plain_lines(report: DataReport) -> None:
    """Each says what it is in its first word; supervised tokens stand between marks."""
    assert "\n".join(format_data_lines(report, stats=True)) + "\n" == (GOLDEN / "data-plain.txt").read_text("utf-8")


@pytest.mark.ci
def test_json(report: DataReport) -> None:
    """Numbers as numbers, findings as those of a check."""
    found = json.loads(format_data_json(report))
    assert (found["rows"], found["broken"], found["steps"]) == (303, 1, report.steps)
    assert found["tokens"] == sum(source["tokens"] for source in found["sources"] if not source["validation"])
    assert found["findings"][0]["severity"] == "block"
    assert {"text": "<|im_start|>", "supervised": False, "special": True, "cut": False, "left_out": 0} in found[
        "rows_shown"
    ][0]["pieces"]


def test_without_a_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be said without one is said, and that more could be."""
    monkeypatch.chdir(tmp_path)
    found = replace(looked(written(Path("train.jsonl"), map(conversation, range(30))), show=1), seconds=0.1)
    assert drawn(DataReportView(found, stats=True, verbose=False), 80) == (GOLDEN / "data-bare-80.txt").read_text(
        "utf-8"
    )


ROW = RowPreview(
    location=WHERE,
    tokens=9,
    pieces=(
        PreviewToken(text=Untrusted("<s>"), supervised=False, special=True),
        PreviewToken(text=Untrusted("Hi"), supervised=False),
        PreviewToken(text=Untrusted(" you\t\x1b[2J"), supervised=False),
        PreviewToken(text=Untrusted("\n\n"), supervised=False),
        PreviewToken(text=Untrusted("Hello"), supervised=True),
        PreviewToken(text=Untrusted(" there\n"), supervised=True),
        PreviewToken(text=Untrusted(""), supervised=False, left_out=1),
        PreviewToken(text=Untrusted("</s>"), supervised=True, special=True),
        PreviewToken(text=Untrusted(" Bye"), supervised=True, cut=True),
    ),
)


def test_a_row_in_colour() -> None:
    """Supervised, masked, control and cut tokens each in their way; what a terminal would obey is spelled out."""
    assert drawn(TokenRowView(ROW), 40, colour=True) == (GOLDEN / "data-row.ansi").read_text("utf-8")


def test_a_row_on_a_line() -> None:
    """Whole on one line, with its marks, for grep."""
    assert (
        format_row_line(ROW) == r"row a.jsonl:1 <s>Hi you\t\x1b[2J\n\n«Hello there\n[… 1 token]</s>[✂ max_length] Bye»"
    )


def decode(ids: Sequence[int]) -> str:
    """Bytes as tokens; 256 and above are control tokens."""
    parts = [f"<{each}>".encode() if each > 255 else bytes([each]) for each in ids]
    return b"".join(parts).decode("utf-8", "replace")


def encoded(text: str, *, mask_from: int = 0) -> EncodedRow:
    ids = np.array([*text.encode(), 256], np.uint32)
    return EncodedRow(location=WHERE, ids=ids, mask=np.arange(len(ids)) >= mask_from)


def test_tokens_of_one_character_are_one_piece() -> None:
    """A character that takes three tokens is shown whole; a control token stands alone."""
    found = build_row_preview(encoded("a€b"), decode, frozenset({256}), limit=None, most=100)
    assert [piece.text for piece in found.pieces] == ["a", "€", "b", "<256>"]
    assert [piece.special for piece in found.pieces] == [False, False, False, True]


def test_half_a_character_before_a_border() -> None:
    """Where the mask changes within a character, both halves are shown as what they are."""
    found = build_row_preview(encoded("€", mask_from=1), decode, frozenset({256}), limit=None, most=100)
    assert [piece.supervised for piece in found.pieces] == [False, True, True, True]


def test_a_long_row_is_shown_in_parts() -> None:
    """Its beginning, what is around the limit, its end; and how much is between."""
    found = build_row_preview(encoded("x" * 999), decode, frozenset({256}), limit=500, most=80)
    assert [piece.left_out for piece in found.pieces if piece.left_out] == [450, 470]
    assert sum(piece.left_out or len(piece.text) for piece in found.pieces[:-1]) == 999
    assert [piece.cut for piece in found.pieces if not piece.left_out].index(True) == 50


def test_a_row_of_which_only_the_beginning_was_kept() -> None:
    """What isn't at hand is counted, and no end is shown that isn't one."""
    found = build_row_preview(encoded("x" * 999), decode, frozenset({256}), limit=None, most=80, length=5000)
    assert (found.tokens, found.pieces[-1].left_out, len(found.pieces)) == (5000, 4960, 41)


def test_a_picture_of_lengths() -> None:
    """What is there at all is seen, and the limit is drawn where it is."""
    lengths = count_lengths([3] * 4000 + [30] * 500 + [300] * 90 + [3000])
    screen = drawn(HistogramView(build_bars(lengths, 16), "tokens", limit=512), 60)
    assert screen == (GOLDEN / "data-histogram-60.txt").read_text("utf-8")


def test_the_line_while_it_reads() -> None:
    """How far by bytes, and how many rows."""
    reading = ReadingView(Console(file=io.StringIO()), opening="opening the files and the tokenizer …")
    assert "opening the files" in drawn(reading, 80)
    reading.update(512 << 10, 1 << 20, 4321)
    assert drawn(reading, 80) == "reading  ━━━━━━━━━━━━────────────  4,321 rows, 512 KiB of 1 MiB\n"
