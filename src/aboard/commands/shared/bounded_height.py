"""A wrapper that limits the height of a renderable, and falls back to ASCII."""

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment

_ASCII = str.maketrans({"✓": "+", "✗": "x", "…": "~", "·": "-", "–": "-", "×": "x", "━": "=", "─": "-", "│": "|"})


class BoundedHeight:
    """At most `height` lines, none wider than the terminal."""

    def __init__(self, renderable: RenderableType, height: int) -> None:
        self._renderable = renderable
        self._height = height

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._renderable, options.update(height=None), pad=False)
        for line in lines[: self._height]:
            yield from (_convert_to_ascii(segment) for segment in line) if options.ascii_only else line
            yield Segment.line()


def _convert_to_ascii(segment: Segment) -> Segment:
    text = segment.text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
    return Segment(text, segment.style, segment.control)
