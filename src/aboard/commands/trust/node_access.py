"""Logs in to nodes and names what is in the way: a bounded number at once, and a dropped handshake again."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import uniform
from typing import Protocol, TypeVar

from aboard.commands.trust.home_files import PRELUDE
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import UnreachedNode
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts
from aboard.core.trust.trust_report import NewHostKey
from aboard.diagnoses import AboardError, Finding, Shell, Unreachable
from aboard.diagnoses.nodes import trust
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import escape_text
from aboard.doctor.reach.subject import find_unreachable_nodes, format_ssh_arguments
from aboard.lazy_dataclass import dataclass
from aboard.transport.node_dialer import HANDSHAKES, TRIES
from aboard.transport.shell.node_shell import NodeShell
from aboard.transport.shell.ssh_login import open_login

T = TypeVar("T")

# Sshd lists the methods that it accepts when it refuses a login: here it asks for nothing.
_ASKS_NOTHING = re.compile(r"Permission denied \((?![a-z,-]*(?:password|keyboard-interactive))")


class TrustObserver(Protocol):
    """Shows progress, and asks the user."""

    def begin_phase(self, phase: str) -> None: ...

    def confirm_host_keys(self, keys: Sequence[NewHostKey]) -> bool:
        """Whether the user has compared all of them; called only with `Access.terminal`."""
        ...

    def announce_password(self, node: str, number: int, total: int) -> None:
        """Ssh is about to ask for a password on the terminal."""
        ...


@dataclass(frozen=True, kw_only=True)
class Access:
    """The ways to log in besides ssh's own: `identity` is an admin key, `terminal` allows to ask the user.

    `typed` is the user's command, for fixes.
    """

    identity: Path | None
    terminal: bool
    typed: Shell

    def may_ask(self, refused: Unreachable) -> bool:
        """Whether ssh may ask the user for a password after this refusal."""
        return self.terminal and not _ASKS_NOTHING.search(refused.seen)


class NodeLogins:
    """Opens shells on nodes; closes all of them at the end."""

    def __init__(self) -> None:
        self._handshakes = asyncio.Semaphore(HANDSHAKES)
        self._shells: list[NodeShell] = []

    async def open(
        self, node: Node, *, identity: Path | None = None, ask: bool = False, through: Sequence[str] = ()
    ) -> NodeShell:
        """A shell on the node, behind these jump hosts; raises Unreachable."""
        extra = ("-J", ",".join(through)) if through else ()

        async def log_in() -> NodeShell:
            return await open_login(node, prelude=PRELUDE, identity=identity, extra=extra, ask=ask)

        shell = await (log_in() if ask else self.retry(log_in))
        self._shells.append(shell)
        return shell

    async def open_any(self, node: Node, access: Access, observer: TrustObserver) -> NodeShell:
        """A shell by the user's own ssh, else by the admin key, else by a password."""
        for identity in dict.fromkeys((None, access.identity)):
            try:
                return await self.open(node, identity=identity)
            except Unreachable as error:
                if error.reason is not UnreachableReason.KEY_REFUSED:
                    raise
                refused = error
        if not access.may_ask(refused):
            raise refused
        observer.announce_password(node.name, 1, 1)
        return await self.open(node, ask=True)

    async def retry(self, connect: Callable[[], Awaitable[T]]) -> T:
        """Connects, again if sshd drops the handshake: with MaxStartups it does so at random."""
        for attempt in range(TRIES):
            async with self._handshakes:
                try:
                    return await connect()
                except Unreachable as error:
                    if error.reason is not UnreachableReason.DROPPED or attempt == TRIES - 1:
                        raise
            await asyncio.sleep(uniform(0.5, 1.0) * 0.25 * 2**attempt)  # noqa: S311 - jitter, no secret
        raise AssertionError("the last try returns or raises")

    async def close(self) -> None:
        shells, self._shells = self._shells, []
        await asyncio.gather(*(shell.close() for shell in shells))


def explain_failure(node: Node, error: AboardError) -> Finding:
    """The finding for an error on one node; an unreachable node gets the same one as from `aboard check`."""
    if isinstance(error, Unreachable):
        if error.reason in (UnreachableReason.GARBAGE, UnreachableReason.NO_PYTHON):
            # No agent was asked for.
            fix = trust.NODE_FAILED.fix(ssh=format_ssh_arguments(node))
            return trust.NODE_FAILED.finding(nodes=(node.name,), seen=error.seen, fix=fix)
        contact = UnreachedNode(reason=error.reason, said=error.seen)
        return next(find_unreachable_nodes(Facts(cluster=Cluster(nodes=(node,)), contacts={node.name: contact})))
    return error.diagnosis.finding(nodes=(node.name,), seen=error.seen, fix=error.fix)


def explain_refusal(node: Node, access: Access, seen: str) -> Finding:
    """The finding for a node that accepts none of the keys that there are."""
    if access.identity is None:
        fix = trust.NO_ACCESS.fix(typed=access.typed)
    else:
        ssh = format_ssh_arguments(node)
        fix = trust.NO_ACCESS.fix("identity", file=access.identity, ssh=ssh, node=node.name)
    return trust.NO_ACCESS.finding(nodes=(node.name,), seen=escape_text(seen, 200), fix=fix)
