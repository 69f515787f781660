"""A head for the lease tests: runs children on all given nodes and prints each event as a JSON line.

argv: token, lease seconds, nodes… It ends all children on "end" at stdin, and lets go at stdin's end.
"""

import asyncio
import json
import secrets
import sys
from typing import Any

from aboard.core.cluster.node import Node
from aboard.core.plan.plan import Start
from aboard.core.run.event_codec import encode_body
from aboard.core.run.events import Event
from aboard.core.run.lease import Lease
from aboard.diagnoses.untrusted import encode_text
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.node_session import NodeSession, OutputChunk, SessionState
from aboard.transport.ssh import SshTransport

COUNTER = """
import os, sys, time
if sys.argv[2] == "loader" and os.fork() == 0:
    sys.argv[2] = "a worker of the loader"
    time.sleep(3600)
if sys.argv[2] == "session":
    os.setsid() if os.fork() == 0 else os._exit(0)
if sys.argv[2] == "daemon":
    for _ in range(2):
        if os.fork():
            os._exit(0)
        os.setsid()
    os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(3600)", sys.argv[1]], {})
if sys.argv[2] == "brief":
    time.sleep(float(sys.argv[3]))
    sys.exit(7)
number = 0
while True:
    print(number, flush=True)
    number += 1
    time.sleep(0.05)
"""
CHILDREN = ("loader", "session", "daemon", "counter")


def tell(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields, default=encode_text) + "\n")
    sys.stdout.flush()


def heard(event: Event) -> None:
    tell(event=event.kind, node=event.node, child=event.child, seq=event.seq, **encode_body(event.body))


def printed(piece: OutputChunk) -> None:
    tell(
        piece=piece.data.decode(),
        node=piece.node,
        child=piece.child,
        stream=piece.stream,
        offset=piece.offset,
        dropped=piece.dropped,
    )


async def hold(token: str, seconds: float, names: list[str]) -> None:
    fleet = NodeDialer(lambda _node: SshTransport(("-o", "ConnectTimeout=2")))
    lease = Lease(seconds=seconds, beat=seconds / 8, grace=1)

    def state_of(name: str) -> Any:
        return lambda state, why: tell(state=state.value, node=name, why=why)

    holds = [
        NodeSession(
            Node(name=name),
            fleet,
            run=token,
            key=secrets.token_hex(16),
            lease=lease,
            on_event=heard,
            on_output=printed,
            on_state=state_of(name),
        )
        for name in names
    ]
    await asyncio.gather(*(held.begin() for held in holds))
    for held in holds:
        for kind in CHILDREN:
            await held.start(Start(child=kind, argv=("python3", "-c", COUNTER, token, kind)))
        # One that ends by itself at a moment that the test doesn't see, in the middle of a cut.
        await held.start(Start(child="brief", argv=("python3", "-c", COUNTER, token, "brief", str(seconds / 2))))
    tell(ready=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        if line.strip() == "end":
            await asyncio.gather(*(held.end() for held in holds if held.state is not SessionState.LOST))
    await asyncio.gather(*(held.leave() for held in holds))


asyncio.run(hold(sys.argv[1], float(sys.argv[2]), sys.argv[3:]))
