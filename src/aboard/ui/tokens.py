"""A row as the model sees it: supervised tokens green, masked ones dim, control tokens as chips, borders by shade."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.data.tokens.pieces import Piece, Shown
from aboard.diagnoses.untrusted import Untrusted, visible
from aboard.ui.figures import many

# Neighbours differ by a shade, so that one sees where a token ends, and need not.
SUPERVISED = ("black on #a3d9a5", "black on #8bcf8e")
MASKED = ("#9a9a9a", "#7f7f7f")
SPECIAL_SUPERVISED, SPECIAL_MASKED = "bold black on #4caf50", "bold #d0a0ff"
CUT = "red strike"
PLAIN = ""

# What encloses supervised tokens where there is no colour.
OPEN, CLOSE = "«", "»"
LIMIT = "✂ max_length"
# Characters of a token, or of a text where there are no tokens.
SHOWN = 4096


class RowView:
    """Where the row stands, then its tokens, wrapped anywhere: a token is not a word."""

    def __init__(self, row: Shown, *, label: str = "") -> None:
        self._row = row
        self._label = label

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        row = self._row
        head = Text.assemble((self._label, "dim"), (str(row.where), "bold"))
        if row.tokens is not None:
            supervised = sum(piece.supervised for piece in row.pieces)
            whole = not any(piece.left_out for piece in row.pieces)
            told = f", {supervised:,} supervised" if whole else ""
            head.append(f"  {many(row.tokens, 'token')}{told}", style="dim")
        yield head
        text = Text()
        for part, style in _styled(row):
            text.append(part, style)
        text.rstrip()
        indent = " " * (len(self._label) or 2)
        for line in text.wrap(console, max(1, options.max_width - len(indent)), overflow="fold"):
            line.rstrip()
            yield Text.assemble(indent, line)


def row_line(row: Shown) -> str:
    """The row on one line, for grep: `row a.jsonl:1 Hi «Hello<|im_end|>»`, with line ends spelled out."""
    parts: list[str] = []
    inside = past = False
    for piece in row.pieces:
        if piece.cut and not past:
            parts.append(f"[{LIMIT}]")
            past = True
        if piece.supervised != inside and not piece.left_out:
            parts.append(OPEN if piece.supervised else CLOSE)
            inside = piece.supervised
        parts.append(f"[… {many(piece.left_out, 'token')}]" if piece.left_out else piece.text.visible(SHOWN))
    return f"row {row.where} {''.join(parts)}{CLOSE * inside}"


def _styled(row: Shown) -> Iterator[tuple[str, str]]:
    past = False
    for number, piece in enumerate(row.pieces):
        if piece.cut and not past:
            yield f" {LIMIT} ", "bold red"
            past = True
        if piece.left_out:
            yield f"\n… {many(piece.left_out, 'token')} …\n", "dim italic"
            continue
        style = _style(piece, number) if row.tokens is not None else PLAIN
        first, *further = _lines(piece.text)
        yield first, style
        for line in further:
            # The sign takes the token's own shade; the line end itself has nothing to colour.
            yield "↵", style
            yield "\n", PLAIN
            yield line, style


def _style(piece: Piece, number: int) -> str:
    if piece.cut:
        return CUT
    if piece.special:
        return SPECIAL_SUPERVISED if piece.supervised else SPECIAL_MASKED
    return (SUPERVISED if piece.supervised else MASKED)[number % 2]


def _lines(text: Untrusted) -> list[str]:
    """Nothing that a terminal would obey; a tab is shown as an arrow."""
    whole = text.raw()
    short = whole if len(whole) <= SHOWN else whole[: SHOWN - 1] + "…"
    return [visible(line, len(line)) for line in short.replace("\t", "→   ").split("\n")]
