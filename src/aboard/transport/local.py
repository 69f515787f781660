"""The local wire: the head itself is a node, reached without ssh."""

import sys

from aboard.core.cluster.node import Node
from aboard.diagnoses import Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.transport import agent_bootstrap
from aboard.transport.open_file_limit import build_limit_reset
from aboard.transport.subprocess_stream import start_program
from aboard.transport.transport import ByteStream, OnPhase, StreamEnding


class LocalTransport:
    """Starts the agent as a child of ours; it is the same agent, in the same two processes."""

    async def open(self, node: Node, on_phase: OnPhase) -> ByteStream:
        on_phase("starting")
        # The node's own `python` is what ranks get; the agent is content with the one that we run on.
        try:
            return await start_program(
                agent_bootstrap.build_argv(sys.executable), lambda _line: None, build_limit_reset()
            )
        except OSError as error:
            raise Unreachable(UnreachableReason.NO_PYTHON, f"{node.name}: {error}") from error

    def classify(self, ending: StreamEnding) -> tuple[UnreachableReason, str]:
        return agent_bootstrap.classify_start_failure(ending)
