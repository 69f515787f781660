"""Formats messages for web hooks. It imports little, since the processes that send messages start with it."""

from collections.abc import Mapping
from typing import Any

# Discord refuses more than 2,000 characters.
_DISCORD = 1900


def format_body(message: Mapping[str, Any], form: str) -> dict[str, Any]:
    """What a web hook of this kind takes. No text in it can mention people, or be taken for markup or a link's name."""
    text = str(message["text"])
    if form == "slack":
        for char, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
            text = text.replace(char, escaped)
        return {"text": text, "mrkdwn": False}
    if form == "discord":
        fenced = text[:_DISCORD].replace("`", "'")
        return {"content": f"```\n{fenced}\n```", "allowed_mentions": {"parse": []}}
    return dict(message)
