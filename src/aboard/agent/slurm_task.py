"""The agent as a task of srun: one srun serves many nodes, so their streams share its stdin and stdout.

srun copies its stdin to every task: the head writes packets, each for one task or for all. srun merges the tasks'
stdout line by line with a label of its own (`-l`), and cuts long lines: a task escapes newlines, breaks lines where it
likes, and the head joins what has the same label. No frame depends on where a line ends.
"""

from __future__ import annotations

import os
import re
import select
import signal
import struct
from collections import OrderedDict
from functools import partial

from aboard.agent import bridge, frames
from aboard.agent.channel import Channel
from aboard.agent.event_loop import EventLoop

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from io import BufferedReader
    from typing import Any

# Kind, task and size of a packet. A task gets the bytes of DATA, or of an earlier STORE by its number (USE).
PACKET = struct.Struct(">BHI")
DATA, STORE, USE, CLOSE = range(4)
EVERY_TASK = 0xFFFF
# Stored bytes that are kept at both ends: the newest, up to this size.
STORE_LIMIT = 16 * 1024 * 1024

# Rare in our frames, which are JSON: a control character.
ESCAPE, ESCAPED_NEWLINE, ESCAPED_ESCAPE = b"\x1d", b"\x1dn", b"\x1de"
# A line that says which node a task runs on, before anything else.
NODE_NAME = b"\x1dN"
# slurmstepd passes on 1024 bytes at a time, and srun adds its label.
LINE_BYTES = 1000

# What describes the agent's own step and task, or would be taken as an option by an srun inside a rank. Programs that
# read SLURM_PROCID, such as Lightning, would take every rank of a node for the same one.
STEP_VARIABLES = re.compile(
    r"SLURM_(?:PROCID|LOCALID|NODEID|GTIDS|TASK_PID|STEP_?.*|NTASKS.*|NPROCS|TASKS_PER_NODE|CPU_BIND.*|MEM_BIND.*|GPU_BIND"
    r"|CPUS_PER_.*|GPUS|GPUS_PER_.*|GRES|MEM_PER_.*|LAUNCH_NODE_IPADDR|SRUN_COMM_.*|UMASK|PRIO_PROCESS|DISTRIBUTION|LABELIO"
    r"|UNBUFFEREDIO|STD(?:IN|OUT|ERR)MODE|OVERLAP|EXACT|EXCLUSIVE|WAIT|KILL_BAD_EXIT|NO_KILL|HINT|THREADS_PER_CORE"
    r"|NNODES_.*|PTY_.*|EXPORT_ENV|MPI_TYPE|WORKING_DIR|OPEN_MODE)|SLURMD_DEBUG|SRUN_.*|SBATCH_.*|SALLOC_.*|PMIX?_.*"
)


def main(marker: bytes, silence: float, stdin: BufferedReader) -> None:
    """Serves the head as a task of srun; `stdin` may have read more than the agent's own code.

    Slurm ends what a task left behind when the task exits. So the task stays as long as its supervisor, and if Slurm
    ends the task, the supervisor ends its ranks.
    """
    task, node = int(os.environ["SLURM_PROCID"]), os.environ["SLURMD_NODENAME"]
    for name in [name for name in os.environ if STEP_VARIABLES.fullmatch(name)]:
        del os.environ[name]
    os.set_blocking(0, False)
    early = stdin.read1()
    os.write(1, b"%s%s\n" % (NODE_NAME, node.encode()))

    anchor = os.pipe()
    try:
        bridge.main(marker, silence, partial(TaskChannel, PacketSplitter(task, early)), anchor)
    finally:
        _wait_for_supervisor(anchor)


def _wait_for_supervisor(anchor: tuple[int, int]) -> None:
    """Waits until nobody has the read end: every supervisor and guard of this task holds it."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    read_end, write_end = anchor
    os.close(read_end)
    poll = select.poll()
    poll.register(write_end, 0)
    poll.poll()


class TaskChannel(Channel):
    """Frames from packets on stdin, and to escaped lines on stdout."""

    def __init__(self, splitter: PacketSplitter, loop: EventLoop, *arguments: Any) -> None:
        super().__init__(loop, *arguments)
        self._splitter = splitter
        # What came with the agent's code; in a moment, when the bridge is complete.
        loop.later(0.0, lambda: self._take(b""))

    def _send_parts(self, *parts: bytes) -> None:
        super()._send_parts(encode_lines(b"".join(parts)))


class PacketSplitter(frames.FrameSplitter):
    """Cuts the broadcast into frame bodies for one task; raises FrameError when the head closes the task's stream."""

    def __init__(self, task: int, early: bytes) -> None:
        super().__init__()
        self._task = task
        self._rest = bytearray(early)
        self._stored = StoredBytes()

    def feed(self, data: bytes) -> list[bytes]:
        self._rest += data
        bodies: list[bytes] = []
        start = 0
        while len(self._rest) - start >= PACKET.size:
            kind, task, size = PACKET.unpack_from(self._rest, start)
            if size > frames.LIMIT + frames.HEADER:
                raise frames.FrameError("a packet of %d bytes" % size)
            end = start + PACKET.size + size
            if len(self._rest) < end:
                break
            if kind == STORE:
                self._stored.add(bytes(self._rest[start + PACKET.size : end]))
            elif task in (self._task, EVERY_TASK):
                payload = bytes(self._rest[start + PACKET.size : end])
                if kind == CLOSE:
                    raise frames.FrameError("the head closed this stream")
                if kind == USE:
                    payload = self._stored.get(int.from_bytes(payload, "big"))
                bodies += super().feed(payload)
            start = end
        del self._rest[:start]
        return bodies


class StoredBytes:
    """The newest stored bytes by number; head and tasks keep the same ones, since they see the same packets."""

    def __init__(self) -> None:
        self._parts: OrderedDict[int, bytes] = OrderedDict()
        self._count = 0
        self._held = 0

    def add(self, data: bytes) -> int:
        number, self._count = self._count, self._count + 1
        self._parts[number] = data
        self._held += len(data)
        while self._held > STORE_LIMIT and len(self._parts) > 1:
            self._held -= len(self._parts.popitem(last=False)[1])
        return number

    def get(self, number: int) -> bytes:
        if number not in self._parts:
            raise frames.FrameError("stored bytes %d, which are not kept" % number)
        return self._parts[number]

    def __contains__(self, number: int) -> bool:
        return number in self._parts


def encode_lines(data: bytes) -> bytes:
    """Lines that srun passes on whole, with newlines escaped."""
    escaped = data.replace(ESCAPE, ESCAPED_ESCAPE).replace(b"\n", ESCAPED_NEWLINE)
    return b"".join(escaped[start : start + LINE_BYTES] + b"\n" for start in range(0, len(escaped), LINE_BYTES))


class LineDecoder:
    """Joins the lines of one task and unescapes them."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, line: bytes) -> bytes:
        """A line or any piece of one, without its newline."""
        data = self._rest + line
        # An escape sequence may be cut in two.
        self._rest = ESCAPE if data.endswith(ESCAPE) else b""
        whole = data[:-1] if self._rest else data
        return whole.replace(ESCAPED_NEWLINE, b"\n").replace(ESCAPED_ESCAPE, ESCAPE)
