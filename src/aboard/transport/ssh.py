"""The ssh transport: the user's own OpenSSH, so that their ssh_config, jump hosts, agents and masters work."""

import shutil
from collections.abc import Sequence

from aboard.core.cluster.node import Node
from aboard.core.text.shell_quoting import join_argv
from aboard.diagnoses import Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.transport import agent_bootstrap
from aboard.transport.ssh_log import SshLoginLog, classify_failure, explain_timeout
from aboard.transport.subprocess_stream import start_program
from aboard.transport.transport import ByteStream, OnPhase, StreamEnding

CONNECT_SECONDS = 10

OPTIONS = (
    "-T",
    "-v",  # its debug lines show the phases of a slow or failed login
    *("-o", "BatchMode=yes"),
    *("-o", "StrictHostKeyChecking=yes"),  # host keys are checked whatever ssh_config says
    *("-o", "ControlMaster=no"),  # an existing master is used, none is made
    *("-o", "ClearAllForwardings=yes"),
    *("-o", "RemoteCommand=none"),
    *("-o", "RequestTTY=no"),
    *("-o", "EscapeChar=none"),
    *("-o", "PermitLocalCommand=no"),
    *("-o", f"ConnectTimeout={CONNECT_SECONDS}"),
)


class SshTransport:
    """`ssh node python3 …`; `extra` options come first, so that they win over ours and over ssh_config."""

    def __init__(self, extra: Sequence[str] = ()) -> None:
        self._extra = tuple(extra)

    async def open(self, node: Node, on_phase: OnPhase) -> ByteStream:
        on_phase("connecting")
        argv = build_ssh_command(node, self._extra)
        if shutil.which(argv[0]) is None:
            raise Unreachable(UnreachableReason.NO_SSH, "there is no ssh program on this machine")

        log = SshLoginLog()

        def classify_line(line: str) -> str | None:
            phase = log.phase_of(line)
            if phase:
                on_phase(phase)
            return phase

        try:
            return await start_program(argv, classify_line)
        except OSError as error:
            # Not the node's fault: too many processes or open files here.
            raise Unreachable(
                UnreachableReason.UNKNOWN, f"{node.name}: cannot start ssh on this machine: {error}"
            ) from error

    def classify(self, ending: StreamEnding) -> tuple[UnreachableReason, str]:
        return classify_failure(ending)

    def explain_timeout(self, ending: StreamEnding) -> tuple[str, str]:
        return explain_timeout(ending)


def build_ssh_command(node: Node, extra: Sequence[str] = ()) -> tuple[str, ...]:
    """The whole ssh command for a node; nothing in it is secret."""
    port = () if node.port is None else ("-p", str(node.port))
    user = () if node.user is None else ("-l", node.user)
    remote = "exec " + join_argv(agent_bootstrap.build_argv(node.python))
    return ("ssh", *extra, *OPTIONS, *port, *user, "--", node.target, remote)
