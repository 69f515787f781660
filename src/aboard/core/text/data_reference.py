"""What of a data set is read, in one line: `OWNER/NAME?split=test&subset=en&revision=v1`."""

import re
from dataclasses import asdict
from typing import Final

from aboard.lazy_dataclass import dataclass

_REFERENCE: Final = re.compile(r"([^?]+)\?((?:split|subset|revision)=[\w./-]+(?:&(?:split|subset|revision)=[\w./-]+)*)")


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
