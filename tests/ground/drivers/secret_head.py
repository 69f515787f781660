"""A head for the secrets test: the secret comes in on stdin's first line and goes out in a child's env.

argv: run id, nodes… It prints all that it hears, says READY, and ends at stdin's end.
"""

import asyncio
import secrets
import sys

from aboard.core.cluster.node import Node
from aboard.core.plan.plan import Start
from aboard.core.run.lease import Lease
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.node_session import NodeSession

# Prints its secret, in one piece and cut in two, as careless scripts do, and stays.
CARELESS = """
import os, sys, time
secret = os.environ["HF_TOKEN"]
print("my token is", secret, flush=True)
for part in (secret[:5], secret[5:], "\\n"):
    sys.stderr.write(part)
    sys.stderr.flush()
    time.sleep(0.2)
time.sleep(3600)
"""


async def main() -> None:
    secret = sys.stdin.readline().strip()
    run, *names = sys.argv[1:]
    pieces: dict[str, bytes] = {}
    told = asyncio.Event()

    def printed(piece: object) -> None:
        print(repr(piece), flush=True)
        node, stream, data = (getattr(piece, name) for name in ("node", "stream", "data"))
        pieces[f"{node}/{stream}"] = pieces.get(f"{node}/{stream}", b"") + data
        if len(pieces) == 2 * len(names) and all(text.endswith(b"\n") for text in pieces.values()):
            told.set()

    holds = [
        NodeSession(
            Node(name=name),
            NodeDialer(),
            run=run,
            key=secrets.token_hex(16),
            lease=Lease(),
            on_event=lambda event: print(repr(event), flush=True),
            on_output=printed,
        )
        for name in names
    ]
    await asyncio.gather(*(hold.begin() for hold in holds))
    start = Start(child="rank0", argv=("python3", "-c", CARELESS), env={"HF_TOKEN": secret}, secrets=("HF_TOKEN",))
    print(repr(start), flush=True)
    await asyncio.gather(*(hold.start(start) for hold in holds))
    await asyncio.wait_for(told.wait(), 20)
    print("READY", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await asyncio.gather(*(hold.end() for hold in holds))
    await asyncio.gather(*(hold.wait_gone() for hold in holds))
    await asyncio.gather(*(hold.leave() for hold in holds))


asyncio.run(main())
