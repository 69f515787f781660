"""What the head owes a keeper for the frames that came: told for many at once, since each word is a packet."""

import asyncio

from aboard.wires.link import Link

# An event that isn't acknowledged yet costs its keeper a little memory, and output has credit for more than this.
SETTLE_SECONDS = 0.05


class Owed:
    """The number of the last event and credit for output, over the link by which they came."""

    def __init__(self, link: Link, most_credit: int) -> None:
        self.link = link
        self._most_credit = most_credit
        self._seq: int | None = None
        self._bytes = 0
        self._due: asyncio.TimerHandle | None = None

    def ack(self, seq: int, *, now: bool) -> None:
        """All events up to this one have been heard; `now` when the keeper waits for it."""
        self._seq = seq
        self._settle_soon(now=now)

    def credit(self, count: int) -> None:
        """So many bytes were taken in; a flood gets its credit before it runs out."""
        self._bytes += count
        self._settle_soon(now=self._bytes >= self._most_credit)

    def settle(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._seq is not None:
            self.link.tell("ack", seq=self._seq)
        if self._bytes:
            self.link.tell("credit", bytes=self._bytes)
        self._seq, self._bytes = None, 0

    def _settle_soon(self, *, now: bool) -> None:
        if now:
            self.settle()
        elif self._due is None:
            self._due = asyncio.get_running_loop().call_later(SETTLE_SECONDS, self.settle)
