"""Logs that hold no cause: what is known all the same, and the two most useful commands."""

from aboard.core.words import many
from aboard.diagnoses import Finding, Shell, logs
from aboard.verdicts.logs.order import in_order
from aboard.verdicts.logs.sighting import Reading, Sighting
from aboard.verdicts.nccl import missing_ranks, named_ranks


def incomplete(reading: Reading) -> Finding | None:
    """NCCL's set-up began and never ended: who is in it, and who never came."""
    waiting = reading.nccl.open()
    if not waiting or reading.progress:
        return None
    there = list(reading.nccl.ranks.values())
    missing = missing_ranks(there, reading.nccl.world)
    ranks = [each.rank for each in waiting if each.rank is not None]
    seen = f"{named_ranks(ranks)} began to set up NCCL, and the log ends before that was done"
    if missing:
        seen += f"; {named_ranks(missing)} of {reading.nccl.world} never came"
    nodes = tuple(dict.fromkeys(each.host for each in waiting)) if not missing else ()
    return logs.INIT_INCOMPLETE.finding(
        nodes=nodes[:8],
        ranks=missing or tuple(sorted(ranks)),
        seen=seen,
        fix=logs.INIT_INCOMPLETE.fix(ranks=Shell(named_ranks(missing) if missing else "each rank")),
    )


def peer_lost(echoes: list[Sighting]) -> Finding | None:
    """Only echoes: who died first is in another log."""
    if not echoes:
        return None
    first = in_order(echoes)[0]
    return logs.PEER_LOST.finding(
        nodes=(first.node,) if first.node else (),
        ranks=() if first.rank is None else (first.rank,),
        seen=f'the log says "{first.text.visible(300)}", and no cause before it',
        fix=logs.PEER_LOST.fix(),
    )


def unknown(reading: Reading) -> Finding | None:
    """Something went wrong, in words that have no name here."""
    if not reading.unknown:
        return None
    seen = "; ".join(f'"{text.visible(200)}"' for text in dict.fromkeys(reading.unknown[-3:]))
    return logs.UNKNOWN.finding(
        nodes=(),
        seen=f"{many(reading.lines, 'line')}, no known cause; the last errors are {seen}",
        fix=logs.UNKNOWN.fix(),
    )
