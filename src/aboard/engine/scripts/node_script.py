"""A script on a node: what it did that nobody has taken yet, and the lines of its output."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from aboard.core.exit_codes import EXIT_FAILED, convert_wait_code
from aboard.core.launchers.captured_launch import Capture
from aboard.core.run.event_kinds import Exited, LauncherCaptured, LauncherEscaped, LauncherWithdrawn, StartFailed
from aboard.core.run.events import STREAMS, Event
from aboard.diagnoses.untrusted import escape_text
from aboard.engine.scripts.launcher_output import LONGEST_LINE, LauncherOutput
from aboard.lazy_dataclass import dataclass
from aboard.record.run_record import Record
from aboard.transport.node_session import NodeSession, SessionState
from aboard.transport.supervisor_messages import OutputChunk

SRUN = "srun"
# Of what launchers have printed, to be known again when the script prints it.
MOST_EXPECTED = 10_000


class ScriptObserver(Protocol):
    """Shows what scripts print and what they are waited for; must neither block nor raise."""

    def script_line(self, node: str, stream: str, text: str, *, of_rank: bool = False) -> None:
        """`of_rank` is for a line that a rank has printed: the script has passed on what its launcher printed."""

    def script_captured(self, text: str, notes: Sequence[str]) -> None: ...

    def script_note(self, text: str) -> None: ...

    def script_waits(self, text: str) -> None: ...

    def script_resumes(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ScriptEnd:
    """How a node's script ended: its exit code, or why it has none."""

    node: str
    code: int | None
    why: str = ""

    @property
    def reason(self) -> str:
        """How it ended, in words behind its name."""
        return self.why if self.code is None else f"ended with exit code {self.code}"

    @property
    def exit_code(self) -> int:
        return EXIT_FAILED if self.code is None else self.code


@dataclass(frozen=True, kw_only=True)
class EscapedLauncher:
    """A launcher of the script's that could not be captured and was ended."""

    command: tuple[str, ...]
    why: str


Outcome = Capture | ScriptEnd | EscapedLauncher


class NodeScript:
    """One node's script: what it did that nobody has taken yet, and the lines of its output."""

    session: NodeSession

    def __init__(self, node: str, record: Record | None, script_observer: ScriptObserver) -> None:
        self.node = node
        # Its number in the record.
        self.index = 0
        self.changed = asyncio.Event()
        # Numbers of captures, escapes, and the end.
        self.outcomes: deque[int | Capture | EscapedLauncher | ScriptEnd | Exception] = deque()
        self.waiting: list[int] = []
        self.called = False
        # By the number of an srun, how many of its kind make a run; 0 for one by itself.
        self.loops: dict[int, int] = {}
        self.on_step: Callable[[int], None] | None = None
        # By launcher, what it prints, and in a loop over nodes the one whose ranks print it.
        self.outputs: dict[int, LauncherOutput] = {}
        self.loop_nodes: dict[int, str] = {}
        self.on_output: Callable[[OutputChunk], object] = lambda _chunk: None
        self._record = record
        self._script_observer = script_observer
        self.on_parallel: Callable[[int], None] = lambda _number: None
        self.on_withdrawn: Callable[[], None] = lambda: None
        self._partial = {"stdout": b"", "stderr": b""}
        # How often each of the lines that launchers have printed last is expected, by their hashes.
        self._expected: dict[int, int] = {}
        self._expected_partial = b""

    def open_output(self, capture: Capture) -> Capture:
        """Prepares what this launcher is to print, if the script sends its output elsewhere."""
        if capture.streams:
            print_lines = partial(self.session.print_lines, capture.number)
            self.outputs[capture.number] = LauncherOutput(capture.streams, print_lines, self._expect)
        return capture

    def _expect(self, data: bytes) -> None:
        *lines, self._expected_partial = (self._expected_partial[-LONGEST_LINE:] + data).split(b"\n")
        for line in map(hash, lines):
            self._expected[line] = self._expected.pop(line, 0) + 1
        while len(self._expected) > MOST_EXPECTED:
            del self._expected[next(iter(self._expected))]

    def take(self, event: Event) -> None:
        match event.body:
            case LauncherCaptured(number=number, launcher=launcher) if launcher == SRUN and self.on_step is not None:
                self.on_step(number)
            case LauncherCaptured(number=number):
                if self.waiting:
                    self.on_parallel(number)
                self.waiting.append(number)
                self.called = True
                self.add(number)
            case LauncherWithdrawn(number=number) if number in self.waiting:
                # It was killed, as by `timeout`.
                self.waiting.remove(number)
                found = [each for each in self.outcomes if number in (each, getattr(each, "number", None))]
                for each in found:
                    self.outcomes.remove(each)
                if not found:
                    self.on_withdrawn()
            case LauncherEscaped(command=words, why=why):
                command = tuple(word.visible(300) for word in words)
                self.add(EscapedLauncher(command=command, why=why.visible(300)))
            case Exited(code=code):
                self.add(ScriptEnd(node=self.node, code=convert_wait_code(code)))
            case StartFailed(why=why):
                self.add(ScriptEnd(node=self.node, code=None, why=f"could not start: {why.visible(300)}"))

    def take_state(self, state: SessionState, why: str) -> None:
        if state is SessionState.LOST:
            self.add(ScriptEnd(node=self.node, code=None, why=f"can no longer be reached: {escape_text(why)}"))

    @property
    def may_call_later(self) -> bool:
        """Whether it has ended well without a launcher, as after `nohup torchrun … &`."""
        (*others, last) = self.outcomes
        return not others and isinstance(last, ScriptEnd) and last.code == 0 and not self.called

    def take_output(self, chunk: OutputChunk) -> None:
        if chunk.stream not in STREAMS:
            return
        self.on_output(chunk)
        if self._record is not None:
            self._record.add_script_output(
                chunk.node, self.index, chunk.stream, chunk.data, chunk.at, dropped=chunk.dropped, end=chunk.end
            )
        *lines, rest = (self._partial[chunk.stream] + chunk.data).split(b"\n")
        if chunk.end or len(rest) > LONGEST_LINE:
            lines, rest = ([*lines, rest] if rest else lines), b""
        self._partial[chunk.stream] = rest
        for line in lines:
            self._say(chunk.stream, line)

    def flush(self) -> None:
        """Shows lines without an end."""
        for stream, rest in self._partial.items():
            if rest:
                self._say(stream, rest)
        self._partial = dict.fromkeys(self._partial, b"")

    def _say(self, stream: str, line: bytes) -> None:
        text = escape_text(line.decode("utf-8", "replace").rstrip("\r"), LONGEST_LINE)
        of_rank = self._expected.get(hash(line), 0)
        if of_rank:
            self._expected[hash(line)] = of_rank - 1
        self._script_observer.script_line(self.node, stream, text, of_rank=of_rank > 0)

    def add(self, outcome: int | Capture | EscapedLauncher | ScriptEnd | Exception) -> None:
        if not (isinstance(outcome, ScriptEnd) and any(isinstance(each, ScriptEnd) for each in self.outcomes)):
            self.outcomes.append(outcome)
        self.changed.set()
