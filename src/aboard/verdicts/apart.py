"""Deaths that say that ranks met in different calls, or that one did not come: whom they mean is the cause."""

import re

from aboard.core.evidence import Evidence, View, nodes_of, ranks_of
from aboard.core.nodeset import fold
from aboard.core.rankset import fold_ranks
from aboard.core.run import Child
from aboard.diagnoses import Finding, hang

_OTHER_SIZE = re.compile(r"Received data size doesn't match expected size|op\.preamble\.length <= op\.nbytes")
_BEHIND = re.compile(r"Ranks? ([\d, ]+) (?:failed to pass|timed out in) monitoredBarrier")


def missed(evidence: Evidence) -> Finding | None:
    """A barrier with a time-out knows who did not come to it."""
    dead = [child for child in evidence.run.generation.children.values() if child.dead and child.raised is not None]
    found = [_BEHIND.search(child.raised.message) for child in dead if child.raised is not None]
    ranks = sorted({int(rank) for match in found if match is not None for rank in re.findall(r"\d+", match[1])})
    views = [view for view in evidence.views if view.rank in ranks]
    if not views:
        return None
    where = f" at {views[0].site}" if views[0].site is not None else ""
    return hang.ABSENT.finding(
        nodes=nodes_of(views),
        ranks=ranks_of(views),
        seen=f"rank {fold_ranks(ranks_of(views))} on {fold(nodes_of(views))} did not come to the barrier in time"
        f"{where}",
        why="All others had reached it and gave up waiting; whatever they say of closed connections is no cause.",
        fix=hang.ABSENT.fix("barrier", run=evidence.plan.run, ranks=fold_ranks(ranks_of(views))),
    )


def met_apart(evidence: Evidence, cause: Child, tail: tuple[str, ...]) -> Finding | None:
    """Two ranks met with different sizes: the one that differs from most, if records tell, else the one that died."""
    text = f"{cause.raised.message if cause.raised is not None else ''} {' '.join(tail)}"
    if _OTHER_SIZE.search(text) is None:
        return None
    odd = [evidence.view(rank) for standing in evidence.standings for rank in (*standing.odd, *standing.behind)]
    odd = [view for view in odd if view.alive]
    ranks = ranks_of(odd) if odd else (int(cause.name),) if cause.name.isdigit() else ()
    nodes = nodes_of(odd) if odd else (cause.node,)
    differs = f"; rank {fold_ranks(ranks)} on {fold(nodes)} is at another call than most{_at(odd[0])}" if odd else ""
    return hang.MISMATCH.finding(
        nodes=nodes,
        ranks=ranks,
        seen=f"rank {cause.name} on {cause.node} got more from a peer than it had asked for, and was ended by Gloo"
        f"{differs}",
        why="Two ranks met in different collectives, or with tensors of different sizes: their code, their"
        " configuration or their data made them go apart.",
        fix=hang.MISMATCH.fix("died", run=evidence.plan.run, rank=cause.name),
    )


def _at(view: View) -> str:
    return f" ({view.site})" if view.site is not None else ""
