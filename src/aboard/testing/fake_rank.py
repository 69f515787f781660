"""A fake rank: passes each phase on schedule, then trains and prints a line now and then."""

import json
from collections.abc import Callable
from zlib import crc32

from aboard.agent import frames
from aboard.core.run.events import METRICS_STREAM, STREAMS
from aboard.core.run.rank_phases import BEACON_PHASES

# Seconds until it has started, until its first phase, and between phases.
BEGIN_SECONDS = 0.02
FIRST_PHASE_SECONDS = 0.2
PHASE_SECONDS = 0.4
STEP_SECONDS = 0.35
LINE_SECONDS = 10.0
RSS = 3 * 2**30
RAISED = {
    "type": "RuntimeError",
    "message": "CUDA error: an illegal memory access was encountered",
    "trace": 'Traceback (most recent call last):\n  File "train.py", line 51, in <module>\n    loss.backward()\n'
    "RuntimeError: CUDA error: an illegal memory access was encountered\n",
}
# As long as a trainer's usually are: a main thread deep in torch.
STACKS = "Current thread 0x00007f21c8fdc740 (most recent call first):\n" + "".join(
    f'  File "/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line {1500 + line} in _call_impl\n'
    for line in range(40)
)

Emit = Callable[..., float]
Later = Callable[[float, Callable[[], None]], object]


class FakeRank:
    """One child of a fake supervisor. `later` schedules a call; `emit` sends an event and returns its wall time."""

    def __init__(self, name: str, later: Later, emit: Emit, flush_output: Callable[[], None]) -> None:
        self.name = name
        self.state = "starting"
        self.code: int | None = None
        self.outputs = {stream: FakeOutput(name, stream) for stream in (*STREAMS, METRICS_STREAM)[: 2 + (name == "0")]}
        self._later = later
        self._emit = emit
        self._flush_output = flush_output
        # Ranks differ a little; each is the same in every run.
        self._spread = crc32(name.encode()) % 1000 / 1000
        self._trains_since: float | None = None
        self._lines = 0

    def start(self, dies_after: float | None) -> None:
        self._later(BEGIN_SECONDS, self._begin)
        for number, phase in enumerate(BEACON_PHASES):
            self._later(FIRST_PHASE_SECONDS + (number + self._spread) * PHASE_SECONDS, self._reach(phase))
        last_phase = FIRST_PHASE_SECONDS + len(BEACON_PHASES) * PHASE_SECONDS
        self._later(last_phase + self._spread * LINE_SECONDS, self._print_line)
        if dies_after is not None:
            self._later(dies_after, self.die)

    @property
    def runs(self) -> bool:
        return self.state == "running"

    def figures(self, now: float) -> frames.Message:
        """Its resource usage and training step at this wall time."""
        used: frames.Message = {"rss": RSS + int(self._spread * 2**20), "cpu": round(0.9 + self._spread / 5, 3)}
        if self._trains_since is not None:
            used |= {"step": int((now - self._trains_since) / STEP_SECONDS), "step_seconds": STEP_SECONDS}
        return used

    def list_arrivals(self, since: float, now: float, late: float) -> frames.Message:
        """When it issued its collectives, one per step: all ranks at the same moments, but `late` and some jitter."""
        if self._trains_since is None:
            return {"why": "idle"}
        first = int((max(since, self._trains_since) - late) / STEP_SECONDS) + 1
        seqs = range(first, int((now - late) / STEP_SECONDS) + 1)
        times = [int((seq * STEP_SECONDS + late) * 1e6) + crc32(b"%d %f" % (seq, self._spread)) % 2000 for seq in seqs]
        if not seqs:
            return {"why": "idle"}
        return {"groups": [["0/0/0", "default_pg", list(seqs), times, seqs[-1]]]}

    def die(self) -> None:
        """Exits with an uncaught exception."""
        if self.runs:
            self._emit("raised", child=self.name, **RAISED)
            self.outputs["stderr"].add(RAISED["trace"])
            self.exit(1)

    def exit(self, code: int) -> None:
        if self.runs:
            self.state, self.code = "exited", code
            self._emit("exited", child=self.name, code=code)
            for output in self.outputs.values():
                output.finished = True
            self._flush_output()

    def _begin(self) -> None:
        self.state = "running"
        self._emit("started", child=self.name, pid=1000 + int(self._spread * 1000))

    def _reach(self, phase: str) -> Callable[[], None]:
        def reach() -> None:
            if self.runs:
                wall = self._emit("phase", child=self.name, phase=phase)
                if phase == tuple(BEACON_PHASES)[-1]:
                    self._trains_since = wall

        return reach

    def _print_line(self) -> None:
        if self.runs:
            self._lines += 1
            self.outputs["stdout"].add(f"rank {self.name}: line {self._lines}, loss {2 + self._spread:.4f}\n")
            if METRICS_STREAM in self.outputs:
                metrics = {"step": 30 * self._lines, "loss": 2 + 8 / self._lines, "grad_norm": 1.0, "memory": RSS}
                self.outputs[METRICS_STREAM].add(json.dumps({**metrics, "seconds": {"data": 1.0, "other": 0.1}}) + "\n")
            self._flush_output()
            self._later(LINE_SECONDS, self._print_line)


class FakeOutput:
    """One output stream of a rank, kept whole since it is short."""

    def __init__(self, child: str, stream: str) -> None:
        self.finished = False
        self.end_sent = False
        self._child = child
        self._stream = stream
        self._text = ""
        self._sent = 0

    def add(self, text: str) -> None:
        self._text += text

    def rewind(self, offset: int) -> None:
        self._sent = min(offset, len(self._text))
        self.end_sent = False

    def next_frame(self, room: int, wall: float) -> frames.Message | None:
        """At most `room` unsent characters; after the last ones, one frame that marks the end."""
        frame: frames.Message = {
            "out": self._child,
            "stream": self._stream,
            "offset": self._sent,
            "wall": wall,
            "data": "",
        }
        if self._sent < len(self._text):
            frame["data"] = self._text[self._sent : self._sent + room]
            self._sent += len(frame["data"])
            return frame
        if self.finished and not self.end_sent:
            self.end_sent = True
            return {**frame, "end": True}
        return None
