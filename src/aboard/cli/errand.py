"""What `aboard launch` was asked to do, and how it begins: nodes are dialled while the rest of the program loads."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from aboard.core.cluster import Cluster
from aboard.core.lease import Lease
from aboard.core.node import Node
from aboard.core.request import Request
from aboard.wires.fleet import Fleet

if TYPE_CHECKING:
    from aboard.flows.launch import Cargo


@dataclass(frozen=True, kw_only=True)
class Errand:
    """`check` is quick, full or none; `cargo` is what a training brings along."""

    cluster: Cluster
    request: Request
    check: str
    lease: Lease
    notes: tuple[str, ...] = ()
    cargo: "Cargo | None" = None


def run(errand: Errand) -> int:
    """Runs it at this terminal; the exit code is the run's."""
    return asyncio.run(_run(errand.cluster, lambda: errand))


def run_early(nodes: Iterable[Node], read: Callable[[], Errand]) -> int:
    """As `run`, of an errand that is not read yet: these nodes are dialled while it is."""
    return asyncio.run(_run(nodes, read))


async def _run(nodes: Iterable[Node], read: Callable[[], Errand]) -> int:
    fleet = Fleet()
    try:
        fleet.begin(nodes)
        # A third of a second, in which the ssh programs have shaken hands and the agents have come up.
        errand = await asyncio.to_thread(read)
        fleet.begin(errand.cluster)
        launching = await asyncio.to_thread(import_module, "aboard.cli.launching")
        code: int = await launching.held(errand, fleet)
        return code
    finally:
        await fleet.close()
