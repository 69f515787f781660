"""What of a data set is read, in one line: `OWNER/NAME?split=test&subset=en&revision=v1`; or a share of it: `2%`."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from aboard.lazy_dataclass import dataclass

_REFERENCE: Final = re.compile(r"([^?]+)\?((?:split|subset|revision)=[\w./-]+(?:&(?:split|subset|revision)=[\w./-]+)*)")
_PERCENT: Final = re.compile(r"\d{1,3}(?:\.\d{1,9})?%")


@dataclass(frozen=True, kw_only=True)
class DataReference:
    """A path or hub name; `subset` is what the hub calls a configuration, `revision` a commit, tag or branch."""

    path: str
    split: str | None = None
    subset: str | None = None
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> "DataReference":
        """The inverse of `str`; any other text is a path."""
        match = _REFERENCE.fullmatch(text)
        if match is None:
            return cls(path=text)
        return cls(path=match[1], **dict(pair.split("=", 1) for pair in match[2].split("&")))

    def __str__(self) -> str:
        chosen = [f"{name}={value}" for name, value in asdict(self).items() if name != "path" and value is not None]
        return f"{self.path}?{'&'.join(chosen)}" if chosen else self.path


def parse_share(entries: Sequence[object]) -> float | None:
    """The fraction that a single `2%` stands for; None for files. It may be out of range."""
    percent = _PERCENT.fullmatch(entries[0]) if len(entries) == 1 and isinstance(entries[0], str) else None
    return None if percent is None else float(percent[0][:-1]) / 100


def format_share(share: float) -> str:
    """As `parse_share` reads it."""
    return f"{100 * share:.12g}%"
