"""Spreading: every node ends with the same files, proven by hash. What a node has already isn't sent."""

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from secrets import token_hex
from time import monotonic
from typing import Any

from aboard.core.node import Node
from aboard.core.stowing import differs, no_room, not_writable
from aboard.data.store.parcels import Parcel
from aboard.data.store.placing import gaps
from aboard.diagnoses import AboardError, join_fixes
from aboard.flows.delivery import Delivery, OnProgress, Progress
from aboard.lazy import dataclass
from aboard.wires.fleet import Fleet

__all__ = ["Delivered", "Parcel", "Progress", "Spread", "spread"]

# Nodes that are sent to at the same time: more only share the head's uplink, and its memory.
AT_ONCE = 16
# Left free on a node's disk: its run writes there too.
SPARE = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """What it took on one node, in bytes; `extra` are files there that the head hasn't got, which are left alone."""

    sent: int
    had: int
    same_disk_as: str | None
    extra: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """That every node has every file; there is none of this where one hasn't."""

    nodes: Mapping[str, Delivered]
    seconds: float

    @property
    def sent(self) -> int:
        return sum(each.sent for each in self.nodes.values())


async def spread(
    nodes: Iterable[Node],
    parcels: Sequence[Parcel],
    fleet: Fleet,
    *,
    on_progress: OnProgress = lambda _progress: None,
    at_once: int = AT_ONCE,
) -> Spread:
    """Looks at all nodes before anything is sent, and says in one error what is wrong with any of them.

    Links go back to the fleet, for the launch that follows; whoever has none to follow closes it.
    """
    began = monotonic()
    places = asyncio.Semaphore(at_once)
    deliveries = [Delivery(node, parcels, fleet, places, on_progress) for node in nodes]
    try:
        await _all([delivery.survey() for delivery in deliveries], first_ends_all=False)
        _told([trouble for delivery in deliveries for trouble in _troubles(delivery)])
        await _find_shared(deliveries, parcels)
        await _all([delivery.deliver() for delivery in deliveries], first_ends_all=True)
        _prove(deliveries, parcels)
        left = await asyncio.gather(*(delivery.leave() for delivery in deliveries))
    finally:
        await asyncio.gather(*(delivery.close() for delivery in deliveries))
    fleet.keep({delivery.node.name: link for delivery, link in zip(deliveries, left, strict=True) if link is not None})
    told = {
        delivery.node.name: Delivered(
            sent=delivery.sent, had=delivery.had, same_disk_as=delivery.same_disk_as, extra=delivery.extra
        )
        for delivery in deliveries
    }
    return Spread(nodes=told, seconds=monotonic() - began)


async def _all(works: Sequence[Coroutine[Any, Any, None]], *, first_ends_all: bool) -> None:
    """All at once; what went wrong with several nodes is told together."""
    tasks = [asyncio.create_task(work) for work in works]
    if not tasks:
        return
    try:
        until = asyncio.FIRST_EXCEPTION if first_ends_all else asyncio.ALL_COMPLETED
        await asyncio.wait(tasks, return_when=until)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    errors = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    for error in errors:
        if not isinstance(error, AboardError):
            raise error
    _told([error for error in errors if isinstance(error, AboardError)])


def _told(troubles: Sequence[AboardError]) -> None:
    """One error for all of them, under the first one's code."""
    if len(troubles) == 1:
        raise troubles[0]
    if troubles:
        seen = "\n".join(dict.fromkeys(each.seen for each in troubles))
        raise AboardError(troubles[0].diagnosis, seen, fix=join_fixes(*dict.fromkeys(each.fix for each in troubles)))


def _troubles(delivery: Delivery) -> list[AboardError]:
    """What is known to fail before it is tried."""
    name = delivery.node.name
    found: list[AboardError] = []
    needed: dict[int, int] = defaultdict(int)
    for parcel, need in delivery.needs():
        if not need.looked.writable:
            found.append(not_writable(name, parcel.to, need.looked.nearest))
            continue
        # Several directories may lie on one disk, which must have room for all of them.
        needed[need.looked.device] += need.bytes
        if need.bytes and needed[need.looked.device] + SPARE > need.looked.free:
            found.append(
                no_room(name, need.looked.nearest, free=need.looked.free, needed=needed[need.looked.device] + SPARE)
            )
    return found


async def _find_shared(deliveries: Sequence[Delivery], parcels: Sequence[Parcel]) -> None:
    """Nodes that see each other's marks in a directory have the same disk: the first of them is sent its files.

    A node that doesn't see a mark, on a file system that tells late, is sent them too; that is slower, and as right.
    """
    run = token_hex(8)
    for place, parcel in enumerate(parcels):
        lacking = [delivery for delivery in deliveries if delivery.lacks(place)]
        if len(lacking) < 2:  # noqa: PLR2004 - nobody to share with
            continue
        marks = {f"{run}-{place}-{number}": delivery for number, delivery in enumerate(lacking)}
        await _all([delivery.mark(parcel, mark) for mark, delivery in marks.items()], first_ends_all=False)
        await _all([delivery.follow_first(place, parcel, marks) for delivery in lacking], first_ends_all=False)


def _prove(deliveries: Sequence[Delivery], parcels: Sequence[Parcel]) -> None:
    for place, parcel in enumerate(parcels):
        for gap in gaps(parcel.files, {delivery.node.name: delivery.found(place) for delivery in deliveries}):
            file = (*gap.missing, *gap.differing)[0]
            raise differs(gap.node, f"{parcel.to}/{file.name}", wanted=file.sha256, found="none")
