"""One srun that runs an agent on several nodes of a job, as one stream per node."""

import asyncio
import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256

from aboard.agent import slurm_task
from aboard.agent.slurm_task import CLOSE, DATA, EVERY_TASK, PACKET, STORE, USE
from aboard.core.cluster.node_sets import expand_node_set
from aboard.diagnoses import InputError
from aboard.transport import agent_bootstrap
from aboard.transport.slurm.srun_log import SHARED_STEP, select_node_lines
from aboard.transport.slurm.step_notices import find_cancel_notice, is_cancel_notice
from aboard.transport.subprocess_stream import LAST_CALL, ProcessStream, start_program
from aboard.transport.transport import Bootstrap, StreamEnding

CHUNK = 256 * 1024
# Writes from here on are stored by all tasks: code and files go to many nodes, and each would read all copies.
SHARED_BYTES = 16 * 1024
# A label and a line that slurmstepd passes on; far above, it is not srun that writes.
LONGEST_LINE = 64 * 1024
# Unread bytes of one node: what its supervisor may send without credit, many times over.
UNREAD_LIMIT = 16 * 1024 * 1024

OPTIONS = (
    "--overlap",  # with the user's own steps, and with our others
    "--mem=0",
    "--cpu-bind=none",  # ranks see all cores and GPUs of the job; `aboard launch --bind` assigns cores
    "--gpu-bind=none",
    "--no-kill",  # one lost node must not end the step on the others
    "--kill-on-bad-exit=0",
    "--wait=0",
    "--mpi=none",
    "--input=all",
    "--label",
)
# What the job asked for as a whole contradicts --gres, which says what these nodes have.
_GPU_OPTIONS = re.compile(r"SLURM_(?:GPUS|GPUS_PER_\w+|NTASKS_PER_GPU|GRES|TRES_\w+|GPU_FREQ)")
_LABEL = re.compile(rb" *([0-9]{1,5}): ?")
_TASK_END = re.compile(
    r"srun: error: (?P<nodes>\S+): tasks? [\d,-]+: (?P<how>Exited with exit code (?P<code>\d+)|.*)\Z"
)
_NODE_FAILURE = re.compile(r"srun: error: Node failure on (?P<nodes>\S+?)\Z")


# Steps that are ending: asyncio keeps only weak references to tasks.
_ENDING: "set[asyncio.Task[None]]" = set()


class SrunStep:
    """A running srun and the streams of its nodes."""

    def __init__(self, process: ProcessStream, nodes: Sequence[str], bootstrap: Bootstrap) -> None:
        self._process = process
        self._streams = {name: StepStream(self, name, bootstrap) for name in nodes}
        self._tasks: dict[int, StepStream] = {}
        self._stored = slurm_task.StoredBytes()
        self._numbers: dict[bytes, int] = {}
        self._packets = bytearray()
        self._open = set(self._streams)
        self._closing: asyncio.Task[None] | None = None
        self._reading = asyncio.create_task(self._read())

    @property
    def streams(self) -> Mapping[str, "StepStream"]:
        return self._streams

    def write(self, task: int, data: bytes | memoryview) -> None:
        if len(data) < SHARED_BYTES:
            self._write_packet(DATA, task, data)
            return
        whole = bytes(data)
        digest = sha256(whole).digest()
        number = self._numbers.get(digest)
        if number is None or number not in self._stored:
            number = self._numbers[digest] = self._stored.add(whole)
            self._write_packet(STORE, EVERY_TASK, whole)
        self._write_packet(USE, task, number.to_bytes(4, "big"))

    async def drain(self) -> None:
        # After the packets of this turn, see `_write_packet`.
        await asyncio.sleep(0)
        await self._process.drain()

    async def close_stream(self, stream: "StepStream", *, hurry: bool) -> None:
        """Closes one node's stream; the last one ends srun."""
        if stream.task is not None:
            self._write_packet(CLOSE, stream.task, b"")
        self._open.discard(stream.name)
        if self._open:
            return
        if self._closing is None:
            self._closing = asyncio.create_task(self._end())
            _ENDING.add(self._closing)
            self._closing.add_done_callback(_ENDING.discard)
        if hurry:
            # In a moment: a task that is cancelled before it began never runs its `finally`, and srun would stay.
            asyncio.get_running_loop().call_soon(self._closing.cancel)
        await asyncio.wait([self._closing], timeout=None if hurry else LAST_CALL)

    async def _end(self) -> None:
        """Lets srun exit when its tasks have.

        Slurm kills the tasks of an srun that is terminated, and with them their supervisors. So a step that we cannot
        reach for a while goes on: its tasks exit when their supervisors do. It ends with this process at the latest.
        """
        self._flush()
        self._process.close_input()
        try:
            await asyncio.wait([self._reading])
        finally:
            self._reading.cancel()
            await asyncio.wait([self._reading])
            await self._process.close(hurry=True)

    @property
    def ending(self) -> StreamEnding:
        return self._process.ending

    def _write_packet(self, kind: int, task: int, payload: bytes | memoryview) -> None:
        """Packets of one turn of the loop go out together: a second small write to a node would wait 40 ms for TCP."""
        if not self._packets:
            asyncio.get_running_loop().call_soon(self._flush)
        self._packets += PACKET.pack(kind, task, len(payload))
        self._packets += payload

    def _flush(self) -> None:
        if self._packets:
            packets, self._packets = self._packets, bytearray()
            self._process.write(packets)

    async def _read(self) -> None:
        rest = b""
        try:
            while data := await self._process.read(CHUNK):
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > LONGEST_LINE:
                    break
                for line in lines:
                    self._take_line(line)
        finally:
            for stream in self._streams.values():
                stream.feed_end()

    def _take_line(self, line: bytes) -> None:
        label = _LABEL.match(line)
        if label is None:
            return
        task, text = int(label[1]), line[label.end() :]
        stream = self._tasks.get(task)
        if stream is not None:
            stream.feed(text)
        elif text.startswith(slurm_task.NODE_NAME):
            name = text[len(slurm_task.NODE_NAME) :].decode("utf-8", "replace")
            stream = self._streams.get(name)
            if stream is not None and stream.task is None:
                stream.task = task
                self._tasks[task] = stream
            elif stream is not None:
                stream.refuse(task)

    def take_message(self, line: str) -> str | None:
        """Notes what a line of srun's stderr says: which nodes have ended, or that Slurm cancels the step."""
        # When we end srun, Slurm says the same.
        if self._closing is None and is_cancel_notice(line):
            find_cancel_notice().give(line)
        ended = _TASK_END.match(line) or _NODE_FAILURE.match(line)
        if ended:
            code = ended.groupdict().get("code")
            with contextlib.suppress(InputError):
                for name in expand_node_set(ended["nodes"]):
                    if name in self._streams:
                        self._streams[name].feed_end(None if code is None else int(code))
        return None


class StepStream:
    """One node's bytes within a step."""

    def __init__(self, step: SrunStep, name: str, bootstrap: Bootstrap) -> None:
        self.name = name
        self.bootstrap = bootstrap
        self.task: int | None = None
        self._step = step
        self._decoder = slurm_task.LineDecoder()
        self._reader = asyncio.StreamReader()
        self._unread = 0
        self._exit_code: int | None = None
        self._closed = False
        self._conflict = ""

    async def read(self, size: int) -> bytes:
        data = await self._reader.read(size)
        self._unread -= len(data)
        return data

    def write(self, data: bytes | memoryview) -> None:
        if self.task is not None and not self._closed:
            self._step.write(self.task, data)

    async def drain(self) -> None:
        await self._step.drain()

    async def close(self, *, hurry: bool = False) -> StreamEnding:
        if not self._closed:
            self._closed = True
            self.feed_end()
            await self._step.close_stream(self, hurry=hurry)
        return self.ending

    @property
    def ending(self) -> StreamEnding:
        whole = self._step.ending
        code = whole.exit_code if self._exit_code is None else self._exit_code
        return StreamEnding(
            exit_code=code, stderr=self._conflict or self._select_messages(whole.stderr), phases=whole.phases
        )

    def feed(self, text: bytes) -> None:
        if self._reader.at_eof() or self._closed:
            return
        data = self._decoder.feed(text)
        self._unread += len(data)
        if self._unread > UNREAD_LIMIT:
            self.feed_end()
        else:
            self._reader.feed_data(data)

    def refuse(self, task: int) -> None:
        """Ends the stream, since another task says that it runs on this node: one of the two is not what it claims."""
        self._conflict = f"tasks {self.task} and {task} both say that they run on {self.name}"
        self.feed_end()

    def feed_end(self, exit_code: int | None = None) -> None:
        if exit_code is not None:
            self._exit_code = exit_code
        self._reader.feed_eof()

    def _select_messages(self, stderr: str) -> str:
        """What srun said in general and about this node; other nodes' lines carry other labels."""
        own = None if self.task is None else str(self.task)
        lines = [SHARED_STEP] if len(self._step.streams) > 1 else []
        for line in stderr.splitlines():
            label = re.match(r" *(\d{1,5}): ", line)
            if label is None or own is None or label[1] == own:
                lines.append(line[label.end() :] if label else line)
        return select_node_lines("\n".join(lines), self.name)


async def start_step(nodes: Sequence[str], python: str, silence: float, *, options: Sequence[str] = ()) -> SrunStep:
    """Starts srun on these nodes and sends the agent to all of them; raises OSError if srun cannot be started."""
    bootstrap = agent_bootstrap.build_bootstrap(silence, agent_bootstrap.START_TASK)
    step: SrunStep | None = None

    def classify_line(line: str) -> str | None:
        return step.take_message(line) if step is not None else None

    process = await start_program(build_srun_command(nodes, python, options), classify_line, env=build_environment())
    step = SrunStep(process, nodes, bootstrap)
    process.write(bootstrap.stdin)
    return step


def build_srun_command(nodes: Sequence[str], python: str, options: Sequence[str] = ()) -> tuple[str, ...]:
    """The whole srun command; nothing in it is secret."""
    count = str(len(nodes))
    where = ("--nodes", count, "--ntasks", count, "--nodelist", ",".join(nodes))
    return ("srun", *options, *OPTIONS, *where, *agent_bootstrap.build_argv(python))


def build_environment() -> dict[str, str]:
    """This process's environment without the options that an enclosing sbatch, salloc or srun left in it.

    With an inherited SLURM_NTASKS, srun would start several agents on a node; SLURM_GPUS_PER_TASK hides GPUs. If the
    script of another Aboard has started us, that one must not capture this srun.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name != "ABOARD_CAPTURE" and not (slurm_task.STEP_VARIABLES.fullmatch(name) or _GPU_OPTIONS.fullmatch(name))
    }
