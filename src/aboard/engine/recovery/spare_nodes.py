"""Keeps spare nodes ready while a run goes on: checked every few minutes, and sent what ranks will need there."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from aboard.core.plan.plan import NodePlan
from aboard.core.text.durations import MINUTE
from aboard.diagnoses import AboardError, Finding

_LOG = logging.getLogger(__name__)

CHECK_SECONDS = 3.0 * MINUTE

# The blocking findings of a quick check of these nodes.
CheckNodes = Callable[[Sequence[str]], Awaitable[Sequence[Finding]]]
# Sends the files of a run to one node, and returns what would start there; None if that is not known yet.
LoadNode = Callable[[str], Awaitable[NodePlan | None]]


class SpareNodes:
    """Spares in the order in which they take over; one that fails its check is left out until it passes again."""

    def __init__(self, names: Sequence[str], *, check_nodes: CheckNodes, load_node: LoadNode) -> None:
        # Called with a node and why it can't take over, "" once it can.
        self.on_change: Callable[[str, str], None] = lambda _name, _why: None
        self._names = list(names)
        self._check_nodes = check_nodes
        self._load_node = load_node
        self._unfit: set[str] = set()
        self._loaded: dict[str, NodePlan | None] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def ready(self) -> list[str]:
        return [name for name in self._names if name not in self._unfit]

    @property
    def parts(self) -> list[NodePlan]:
        """What would start on those that have the files of the run."""
        return [part for name in self.ready if (part := self._loaded.get(name)) is not None]

    def remove(self, names: Sequence[str]) -> None:
        """They have ranks now."""
        self._names = [name for name in self._names if name not in names]

    async def check(self, name: str) -> bool:
        """Whether a spare could take over now; what prevents it is reported once."""
        findings = await self._check_nodes([name])
        self._report(name, findings[0].seen if findings else "")
        return not findings

    def start(self) -> None:
        """Keeps them ready in the background, until `stop`."""
        if self._names and self._task is None:
            self._task = asyncio.create_task(self._keep_ready())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _keep_ready(self) -> None:
        """One after the other, so that the network is left to the ranks. They were checked when the run started."""
        while True:
            for name in list(self._names):
                if name in self._loaded and not await self.check(name):
                    continue
                if name not in self._loaded:
                    await self._load(name)
            await asyncio.sleep(CHECK_SECONDS)

    async def _load(self, name: str) -> None:
        try:
            self._loaded[name] = await self._load_node(name)
        except AboardError as error:
            self._report(name, error.seen)
        else:
            self._report(name, "")

    def _report(self, name: str, why: str) -> None:
        if bool(why) != (name in self._unfit):
            self._unfit ^= {name}
            _LOG.info("spare %s %s", name, f"can't take over: {why}" if why else "is ready")
            self.on_change(name, why)
