"""The local transport: the head itself as a node, without ssh."""

import sys

from aboard.core.cluster.node import Node
from aboard.diagnoses import Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.transport import agent_bootstrap
from aboard.transport.open_file_limit import build_limit_reset
from aboard.transport.subprocess_stream import start_program
from aboard.transport.transport import ByteStream, OnPhase, StreamEnding


class LocalTransport:
    """Starts the same agent as a child process."""

    async def open(self, node: Node, on_phase: OnPhase) -> ByteStream:
        on_phase("starting")
        # Ranks get the node's `python`; the agent runs on ours.
        try:
            return await start_program(
                agent_bootstrap.build_argv(sys.executable), lambda _line: None, build_limit_reset()
            )
        except OSError as error:
            raise Unreachable(UnreachableReason.NO_PYTHON, f"{node.name}: {error}") from error

    def classify(self, ending: StreamEnding) -> tuple[UnreachableReason, str]:
        return agent_bootstrap.classify_start_failure(ending)

    def explain_timeout(self, ending: StreamEnding) -> tuple[str, str]:
        return "", ""
