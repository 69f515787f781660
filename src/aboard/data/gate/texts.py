"""The texts of a row, and who says each."""

from collections.abc import Iterator

from aboard.data.rows import Row

PROMPT, ANSWER, TEXT = "prompt", "answer", "text"


def texts(row: Row) -> Iterator[tuple[str, str]]:
    """Every text that the user's file has for this row, with its role; a pair's are a prompt and an answer."""
    if row.messages is not None and row.kind == "chat":
        for message in row.messages:
            content = message.get("content")
            if isinstance(content, str):
                yield str(message.get("role")), content
    for who, text in ((PROMPT, row.prompt), (ANSWER, row.completion), (TEXT, row.text)):
        if text is not None:
            yield who, text
