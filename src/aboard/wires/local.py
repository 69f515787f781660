"""The local wire: the head itself is a node, reached without ssh."""

import sys

from aboard.core.node import Node
from aboard.diagnoses import Unreachable
from aboard.diagnoses.reason import Reason
from aboard.wires import bootstrap
from aboard.wires.limits import give_back
from aboard.wires.process import start
from aboard.wires.wire import OnPhase, Stream


class LocalWire:
    """Starts the agent as a child of ours; it is the same agent, in the same two processes."""

    async def open(self, node: Node, on_phase: OnPhase) -> Stream:
        on_phase("starting")
        # The node's own `python` is what ranks get; the agent is content with the one that we run on.
        try:
            return await start(bootstrap.argv(sys.executable), lambda _line: None, give_back())
        except OSError as error:
            raise Unreachable(Reason.NO_PYTHON, f"{node.name}: {error}") from error
