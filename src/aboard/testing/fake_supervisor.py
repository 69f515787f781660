"""A fake supervisor: handles a supervisor's requests and sends its events, without any process."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import field
from signal import SIGKILL
from typing import Any, Protocol
from zlib import crc32

from aboard.agent import frames
from aboard.lazy_dataclass import dataclass
from aboard.testing.fake_rank import STACKS, FakeRank

SAMPLE_SECONDS = 1.0
# How long ranks take to dump their stacks, and to exit after SIGTERM.
STACKS_SECONDS = 0.2
LEAVE_SECONDS = 0.1
USUAL_PORT = 29500
NODE_MEMORY, NODE_MEMORY_TOTAL, NODE_RATE = 0.41, 2 << 40, 3 << 30
# Utilization, memory used and total, power, temperature.
GPU = [97.0, 70e9, 80e9, 610.0, 58.0]
ARRIVAL_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class FakeNodeFaults:
    """Faults of a fake node: seconds from start to death by child, and seconds until the node falls silent.

    A silent node sends nothing more, as after a power failure. `kills` are deaths by SIGKILL, by attempt and child: in
    the second attempt, rank 5 is `2/5`. `late` are the seconds by which a child comes late to each collective.
    """

    kills: Mapping[str, float] = field(default_factory=dict)
    dies: Mapping[str, float] = field(default_factory=dict)
    silent: float | None = None
    late: Mapping[str, float] = field(default_factory=dict)


class FrameSink(Protocol):
    """Carries frames to the head."""

    def send(self, message: frames.Message) -> None: ...

    @property
    def unsent(self) -> int: ...


class FakeSupervisor:
    """One run on one fake node; `on_gone` is called when the supervisor exits."""

    def __init__(self, node: str, message: frames.Message, faults: FakeNodeFaults, on_gone: Callable[[], None]) -> None:
        self.cut_off = False
        self._loop = asyncio.get_running_loop()
        self._run = str(message["run"])
        self._key = str(message["key"])
        self._lease = float(message["lease"]["seconds"])
        self._faults = faults
        self._on_gone = on_gone
        self._bridge: FrameSink | None = None
        self._ranks: dict[str, FakeRank] = {}
        self._events: deque[frames.Message] = deque()
        self._seq = 0
        self._credit = 0
        self._ending = self._ended = self._left = False
        self._began = self._arrivals_sent = time.time()
        self._handlers: dict[str, Callable[[frames.Message], frames.Message | None]] = {
            "beat": lambda _message: {"wall": time.time()},
            "ack": lambda message: self._ack(int(message["seq"])),
            "credit": self._add_credit,
            "code": lambda _message: None,
            "start": self._start,
            "signal": self._signal,
            "reserve": lambda message: {"port": message["port"] or USUAL_PORT},
            "listening": lambda _message: None,
            "lease": lambda _message: None,
            "end": lambda _message: self._end(),
        }
        # Nodes sample at different moments.
        self._loop.call_later(crc32(node.encode()) % 1000 / 1000 * SAMPLE_SECONDS, self._sample)
        if faults.silent is not None:
            self._loop.call_later(faults.silent, self._cut_off)

    # -- bridges -----------------------------------------------------------------------------------------

    def admit(self, bridge: FrameSink, message: frames.Message) -> None:
        """A bridge with the run's key replaces the previous one and gets all unacknowledged events."""
        if message["key"] != self._key:
            bridge.send({"re": message["id"], "error": f"wrong key for run {self._run}"})
            return
        self._bridge = bridge
        self._credit = int(message["credit"])
        for rank in self._ranks.values():
            for stream, output in rank.outputs.items():
                output.rewind(message["have"].get(f"{rank.name}/{stream}", 0))
        children = {name: {"state": rank.state} for name, rank in self._ranks.items()}
        bridge.send({"re": message["id"], "children": children, "lost_events": 0, "wall": time.time()})
        self._ack(int(message["acked"]))
        for event in self._events:
            bridge.send(event)
        self._flush_output()

    def lose(self, bridge: FrameSink) -> None:
        """Starts the lease."""
        if bridge is self._bridge:
            self._bridge = None
            self._loop.call_later(self._lease, self._expire_lease)

    def _expire_lease(self) -> None:
        if self._bridge is None and not self.cut_off:
            self._leave()

    def _cut_off(self) -> None:
        self.cut_off = True

    # -- requests from the head ------------------------------------------------------------------------------

    def handle(self, bridge: FrameSink, message: frames.Message) -> None:
        if self.cut_off:
            return
        number, op = message.get("id"), message["op"]
        if op == "stacks":
            # Replied to later, as by a real supervisor.
            stacks = {name: STACKS if rank.runs else {"why": "it has exited"} for name, rank in self._ranks.items()}
            self._loop.call_later(STACKS_SECONDS, self._send, bridge, {"re": number, "stacks": stacks})
            return
        handle = self._handlers.get(op)
        reply = {"error": f"a fake supervisor does not support {op}"} if handle is None else handle(message)
        if number is not None:
            self._send(bridge, {"re": number, **(reply or {})})

    def _send(self, bridge: FrameSink, message: frames.Message) -> None:
        if not self.cut_off:
            bridge.send(message)

    def _start(self, message: frames.Message) -> None:
        name = str(message["child"])
        if name not in self._ranks:
            rank = self._ranks[name] = FakeRank(name, self._loop.call_later, self._emit, self._flush_output)
            rank.start(self._faults.dies.get(name))
            attempt = self._run.rpartition(".")[2]
            if delay := self._faults.kills.get(f"{attempt if attempt.isdecimal() else 1}/{name}"):
                self._loop.call_later(delay, rank.exit, -SIGKILL)

    def _add_credit(self, message: frames.Message) -> None:
        self._credit += int(message["bytes"])
        self._flush_output()

    def _signal(self, message: frames.Message) -> None:
        self._ranks[message["child"]].exit(-int(message["signal"]))

    # -- events and output for the head -----------------------------------------------------------------------------

    def _emit(self, kind: str, **fields: Any) -> float:
        self._seq += 1
        wall = time.time()
        event = {"event": self._seq, "kind": kind, "wall": wall, **fields}
        self._events.append(event)
        if self._bridge is not None:
            self._send(self._bridge, event)
        return wall

    def _ack(self, seq: int) -> None:
        while self._events and self._events[0]["event"] <= seq:
            self._events.popleft()
        self._leave_if_done()

    def _flush_output(self) -> None:
        for rank in self._ranks.values():
            for output in rank.outputs.values():
                while self._bridge is not None and self._credit > 0:
                    frame = output.next_frame(self._credit, time.time())
                    if frame is None:
                        break
                    self._credit -= len(frame["data"])
                    self._send(self._bridge, frame)
        self._leave_if_done()

    def _sample(self) -> None:
        """As in the real supervisor: only while nothing is waiting to be sent."""
        if self._left:
            return
        self._loop.call_later(SAMPLE_SECONDS, self._sample)
        if self._bridge is not None and not self._bridge.unsent:
            wall = time.time()
            children = {name: rank.figures(wall) for name, rank in self._ranks.items() if rank.runs}
            if children:
                node = {"load": round(sum(used["cpu"] for used in children.values()), 2), "memory": NODE_MEMORY}
                sent = int((wall - self._began) * NODE_RATE)
                node |= {"memory_total": NODE_MEMORY_TOTAL, "received": sent, "sent": sent}
                if wall // ARRIVAL_SECONDS > self._arrivals_sent // ARRIVAL_SECONDS:
                    for name, used in children.items():
                        late = self._faults.late.get(name, 0.0)
                        used["arrivals"] = self._ranks[name].list_arrivals(self._arrivals_sent, wall, late)
                    self._arrivals_sent = wall
                gpus = [GPU] * len(children)
                samples = {"wall": wall, "node": node, "gpus": gpus, "children": children}
                self._send(self._bridge, {"samples": samples})

    # -- the end -----------------------------------------------------------------------------------------

    def _end(self) -> None:
        if not self._ending:
            self._ending = True
            self._emit("ending", why="the head requested it")
            self._loop.call_later(LEAVE_SECONDS, self._terminate_ranks)

    def _terminate_ranks(self) -> None:
        for rank in self._ranks.values():
            rank.exit(-15)
        self._emit("ended", killed=0, stubborn=[])
        self._ended = True
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        outputs = (output for rank in self._ranks.values() for output in rank.outputs.values())
        if self._ended and not self._events and all(output.end_sent for output in outputs):
            self._leave()

    def _leave(self) -> None:
        if not self._left:
            self._left = True
            if self._bridge is not None:
                self._send(self._bridge, {"gone": "supervisor"})
            self._on_gone()
