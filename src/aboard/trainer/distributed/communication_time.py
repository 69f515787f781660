"""Measures how long a rank waits for others, if that is visible from outside: at each wait for a gloo collective.

Accelerators wait in their own streams, and DDP inside its reducer, which overlaps with backward: there the wait is part
of forward and backward, and reported as None.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from aboard.trainer.distributed.rank_context import RankContext
from aboard.trainer.metrics.time_ledger import TimeLedger


@contextmanager
def time_collective_waits(context: RankContext, ledger: TimeLedger) -> Iterator[None]:
    """Books the waits of this thread as communication while it lasts."""
    if context.device.type != "cpu" or not context.distributed:
        yield
        return
    plain, own = dist.Work.wait, threading.get_ident()

    def wait(work: dist.Work, *args: Any, **named: Any) -> Any:
        if threading.get_ident() != own:
            return plain(work, *args, **named)
        before = ledger.switch_to("communication")
        try:
            return plain(work, *args, **named)
        finally:
            ledger.switch_to(before)

    dist.Work.wait = wait  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        dist.Work.wait = plain  # type: ignore[method-assign]


def is_communication_visible(context: RankContext) -> bool:
    """Whether all communication is visible."""
    return not context.distributed or (context.device.type == "cpu" and context.mesh is not None)
