"""A rank that is only acted: it comes to each phase in its time, then takes steps and says a line now and then."""

from collections.abc import Callable
from zlib import crc32

from aboard.agent import frames
from aboard.core.run.events import STREAMS
from aboard.core.run.rank_phases import BEACON_PHASES

# When it has begun, when it comes to the first phase, and how far the phases lie apart, in seconds.
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
# As long as a trainer's usually are: a main thread deep in torch, and some helpers that wait.
STACKS = "Current thread 0x00007f21c8fdc740 (most recent call first):\n" + "".join(
    f'  File "/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line {1500 + line} in _call_impl\n'
    for line in range(40)
)

Tell = Callable[..., float]
Later = Callable[[float, Callable[[], None]], object]


class FakeRank:
    """One child of an acted keeper; `later` calls after so many seconds, `tell` takes its events and says when."""

    def __init__(self, name: str, later: Later, tell: Tell, pour: Callable[[], None]) -> None:
        self.name = name
        self.state = "starting"
        self.code: int | None = None
        self.outputs = {stream: FakeOutput(name, stream) for stream in STREAMS}
        self._later = later
        self._tell = tell
        self._pour = pour
        # Ranks differ a little, and each is the same in every run.
        self._spread = crc32(name.encode()) % 1000 / 1000
        self._trains_since: float | None = None
        self._lines = 0

    def start(self, dies_after: float | None) -> None:
        self._later(BEGIN_SECONDS, self._begin)
        for number, phase in enumerate(BEACON_PHASES):
            self._later(FIRST_PHASE_SECONDS + (number + self._spread) * PHASE_SECONDS, self._come_to(phase))
        self._later(FIRST_PHASE_SECONDS + len(BEACON_PHASES) * PHASE_SECONDS + self._spread * LINE_SECONDS, self._say)
        if dies_after is not None:
            self._later(dies_after, self.die)

    @property
    def runs(self) -> bool:
        return self.state == "running"

    def figures(self, now: float) -> frames.Message:
        """What it uses at a time by the wall, and how far it has come."""
        used: frames.Message = {"rss": RSS + int(self._spread * 2**20), "cpu": round(0.9 + self._spread / 5, 3)}
        if self._trains_since is not None:
            used |= {"step": int((now - self._trains_since) / STEP_SECONDS), "step_seconds": STEP_SECONDS}
        return used

    def die(self) -> None:
        """By an exception that nobody caught."""
        if self.runs:
            self._tell("raised", child=self.name, **RAISED)
            self.outputs["stderr"].add(RAISED["trace"])
            self.exit(1)

    def exit(self, code: int) -> None:
        if self.runs:
            self.state, self.code = "exited", code
            self._tell("exited", child=self.name, code=code)
            for output in self.outputs.values():
                output.finished = True
            self._pour()

    def _begin(self) -> None:
        self.state = "running"
        self._tell("started", child=self.name, pid=1000 + int(self._spread * 1000))

    def _come_to(self, phase: str) -> Callable[[], None]:
        def come() -> None:
            if self.runs:
                wall = self._tell("phase", child=self.name, phase=phase)
                if phase == tuple(BEACON_PHASES)[-1]:
                    self._trains_since = wall

        return come

    def _say(self) -> None:
        if self.runs:
            self._lines += 1
            self.outputs["stdout"].add(f"rank {self.name}: line {self._lines}, loss {2 + self._spread:.4f}\n")
            self._pour()
            self._later(LINE_SECONDS, self._say)


class FakeOutput:
    """One stream of a rank: it says so little that all of it is kept."""

    def __init__(self, child: str, stream: str) -> None:
        self.finished = False
        self.told = False
        self._child = child
        self._stream = stream
        self._text = ""
        self._sent = 0

    def add(self, text: str) -> None:
        self._text += text

    def rewind(self, offset: int) -> None:
        self._sent = min(offset, len(self._text))
        self.told = False

    def next_frame(self, room: int, wall: float) -> frames.Message | None:
        """At most `room` characters of what is unsent, then once the end."""
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
        if self.finished and not self.told:
            self.told = True
            return {**frame, "end": True}
        return None
