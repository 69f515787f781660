"""A bar that fills: how much of the way all have come."""

from rich.text import Text

FULL = "━"


def render_bar(share: float, width: int, *, style: str = "green") -> Text:
    """So many cells; full only when all of it is done, and begun as soon as anything is."""
    filled = min(width, max(0, int(share * width)))
    if share > 0 and width > 1:
        filled = max(1, filled)
    # Another sign too for what is left: the bar must do without colours.
    return Text.assemble((FULL * filled, style), ("─" * (width - filled), "dim"), no_wrap=True)
