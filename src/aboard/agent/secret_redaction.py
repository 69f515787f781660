"""Removes known secrets from a stream before it reaches a disk or the network."""

from __future__ import annotations

import re

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Iterable


MASK = b"[secret]"
# A value this short would mask ordinary words and numbers, and is no secret.
SHORTEST = 6


class Redactor:
    """Masks each secret wherever it occurs, however reads split the stream."""

    def __init__(self, secrets: Iterable[str]) -> None:
        values = {secret.encode("utf-8", "surrogateescape") for secret in secrets}
        # The longest first: a secret that begins with another must not leave its tail behind.
        self._secrets = sorted((value for value in values if len(value) >= SHORTEST), key=len, reverse=True)
        self._any = re.compile(b"|".join(map(re.escape, self._secrets)))
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Returns what is safe to pass on; a possible beginning of a secret at the end is held back."""
        if not self._secrets:
            return data
        data = self._held + data
        safe = []
        start, open_from = 0, self._beginning(data, 0)
        for found in self._any.finditer(data):
            # Data that may still become a longer secret is not decided yet.
            if open_from <= found.start():
                break
            safe += [data[start : found.start()], MASK]
            start = found.end()
            if open_from < start:
                open_from = self._beginning(data, start)
        self._held = data[open_from:]
        safe.append(data[start:open_from])
        return b"".join(safe)

    def flush(self) -> bytes:
        rest, self._held = self._held, b""
        return self._any.sub(MASK, rest) if self._secrets else rest

    def _beginning(self, data: bytes, start: int) -> int:
        """The first place from `start` on where the data ends inside of a secret; its end if there is none."""
        longest = 0
        for secret in self._secrets:
            for size in range(min(len(secret) - 1, len(data) - start), longest, -1):
                if data.endswith(secret[:size]):
                    longest = size
                    break
        return len(data) - longest
