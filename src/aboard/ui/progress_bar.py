"""A progress bar."""

from rich.text import Text

FULL = "━"


def render_bar(share: float, width: int, *, style: str = "green") -> Text:
    """`width` cells; full only at 100 %, and at least one cell once anything is done."""
    filled = min(width, max(0, int(share * width)))
    if share > 0 and width > 1:
        filled = max(1, filled)
    # A different character for the rest: the bar must be readable without colours.
    return Text.assemble((FULL * filled, style), ("─" * (width - filled), "dim"), no_wrap=True)
