"""How text that came from outside is made fit for a screen."""

_SHOWN = 80


def visible(text: str, limit: int = _SHOWN) -> str:
    """The text on one line, with what a terminal would obey spelled out, and cut when it is long."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in short)
