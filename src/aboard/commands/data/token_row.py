"""A row as the model sees it: supervised tokens green, masked ones dim, control tokens bold, shades alternating."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.shared.number_format import format_count
from aboard.diagnoses.untrusted import Untrusted, escape_text
from aboard.trainer.data.tokens.row_preview import PreviewToken, RowPreview

# Neighbouring tokens alternate in shade, so that their borders are visible.
SUPERVISED = ("black on #a3d9a5", "black on #8bcf8e")
MASKED = ("#9a9a9a", "#7f7f7f")
SPECIAL_SUPERVISED, SPECIAL_MASKED = "bold black on #4caf50", "bold #d0a0ff"
CUT = "red strike"
PLAIN = ""

# Enclose supervised tokens in plain text.
OPEN, CLOSE = "«", "»"
LIMIT = "✂ max_length"
# Characters of a token, or of a text where there are no tokens.
LONGEST_TEXT = 4096


class TokenRowView:
    """The location of the row, then its tokens, wrapped anywhere."""

    def __init__(self, row: RowPreview, *, label: str = "") -> None:
        self._row = row
        self._label = label

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        row = self._row
        head = Text.assemble((self._label, "dim"), (str(row.location), "bold"))
        if row.tokens is not None:
            supervised = sum(piece.supervised for piece in row.pieces)
            whole = not any(piece.left_out for piece in row.pieces)
            supervised_text = f", {supervised:,} supervised" if whole else ""
            head.append(f"  {format_count(row.tokens, 'token')}{supervised_text}", style="dim")
        yield head
        text = Text()
        for part, style in _style_pieces(row):
            text.append(part, style)
        text.rstrip()
        indent = " " * (len(self._label) or 2)
        for line in text.wrap(console, max(1, options.max_width - len(indent)), overflow="fold"):
            line.rstrip()
            yield Text.assemble(indent, line)


def format_row_line(row: RowPreview) -> str:
    """The row on one plain line: `row a.jsonl:1 Hi «Hello<|im_end|>»`, with line ends escaped."""
    parts: list[str] = []
    inside = past = False
    for piece in row.pieces:
        if piece.cut and not past:
            parts.append(f"[{LIMIT}]")
            past = True
        if piece.supervised != inside and not piece.left_out:
            parts.append(OPEN if piece.supervised else CLOSE)
            inside = piece.supervised
        parts.append(
            f"[… {format_count(piece.left_out, 'token')}]" if piece.left_out else piece.text.visible(LONGEST_TEXT)
        )
    return f"row {row.location} {''.join(parts)}{CLOSE * inside}"


def _style_pieces(row: RowPreview) -> Iterator[tuple[str, str]]:
    past = False
    for number, piece in enumerate(row.pieces):
        if piece.cut and not past:
            yield f" {LIMIT} ", "bold red"
            past = True
        if piece.left_out:
            yield f"\n… {format_count(piece.left_out, 'token')} …\n", "dim italic"
            continue
        style = _choose_style(piece, number) if row.tokens is not None else PLAIN
        first, *further = _split_lines(piece.text)
        yield first, style
        for line in further:
            # The sign has the token's shade; the line end itself cannot be coloured.
            yield "↵", style
            yield "\n", PLAIN
            yield line, style


def _choose_style(token: PreviewToken, number: int) -> str:
    if token.cut:
        return CUT
    if token.special:
        return SPECIAL_SUPERVISED if token.supervised else SPECIAL_MASKED
    return (SUPERVISED if token.supervised else MASKED)[number % 2]


def _split_lines(text: Untrusted) -> list[str]:
    """The lines without terminal control characters; a tab becomes an arrow."""
    whole = text.raw()
    short = whole if len(whole) <= LONGEST_TEXT else whole[: LONGEST_TEXT - 1] + "…"
    return [escape_text(line, len(line)) for line in short.replace("\t", "→   ").split("\n")]
