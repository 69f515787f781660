"""Secrets in the formats that they have in logs, and innocent text that looks like them.

A corpus is a directory of JSON files. Each file is a list of objects:

    {"id": "slack-bot", "text": ["slack: ", "xox", "b-12345"], "secret": ["xox", "b-12345"]}
    {"id": "commit", "text": ["commit 0123456789abcdef"], "secret": null}

`text` and `secret` are parts that are joined by "": no file contains a whole secret, since code hosts refuse to accept
one. All secrets are made up. `text` may have several lines, which are consecutive lines of one stream.

A case with a secret passes if the secret is not in the scrubbed text and at most a quarter of it survives in one piece.
An innocent case (`secret` is null) passes if its text is unchanged.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aboard.core.secrets.secret_names import MASK

# Shorter pieces of a secret occur by chance.
_SHORTEST_PIECE = 4
CORPUS = Path(__file__).parents[1] / "cases" / "secrets"


@dataclass(frozen=True, kw_only=True)
class SecretCase:
    """One text, with the secret in it or None."""

    id: str
    text: str
    secret: str | None

    def passes(self, scrub: Callable[[str], str]) -> bool:
        scrubbed = scrub(self.text)
        if self.secret is None:
            return scrubbed == self.text
        size = max(_SHORTEST_PIECE, len(self.secret) // 4 + 1)
        pieces = (self.secret[start : start + size] for start in range(len(self.secret) - size + 1))
        innocent, left = self.text.replace(self.secret, ""), scrubbed.replace(MASK, "")
        return self.secret not in left and not any(piece in left and piece not in innocent for piece in pieces)


def read_corpus(directory: Path = CORPUS) -> list[SecretCase]:
    """All cases of a directory."""
    cases = [case for path in sorted(directory.glob("*.json")) for case in json.loads(path.read_text("utf-8"))]
    return [
        SecretCase(
            id=case["id"],
            text="".join(case["text"]),
            secret=None if case["secret"] is None else "".join(case["secret"]),
        )
        for case in cases
    ]
