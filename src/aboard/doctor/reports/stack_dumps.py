"""What py-spy's dumps of ranks show: where each main thread is, and which rank is not where the others wait."""

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from aboard.core.decoding import DecodeError, MaxLength, decode
from aboard.core.evidence.python_stacks import StackFrame, classify_activity, find_user_frame
from aboard.core.text.input_text import agree
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.hang import diagnoses as hang
from aboard.lazy_dataclass import dataclass

_THREADS = re.compile(r'^Thread .{1,60}: "(.{0,100})"$', re.MULTILINE)
_FRAME = re.compile(r"^ {4}(\S.{0,200}) \(([^()\n]{1,400}):(\d{1,9})\)$", re.MULTILINE)
_PACKAGES = ("torch", "torchvision", "deepspeed", "accelerate", "transformers", "datasets", "lightning", "megatron")
_ELSEWHERE = {
    **dict.fromkeys(("lock", "queue"), hang.LOCK),
    **dict.fromkeys(("checkpoint", "evaluation"), hang.BUSY),
    "data": hang.DATA,
    "network": hang.OUTSIDE,
}
_WAITS = ("collective", "group", "store")


@dataclass(frozen=True, kw_only=True)
class _Frame:
    name: Annotated[Untrusted, MaxLength(200)] = NO_TEXT
    filename: Annotated[Untrusted, MaxLength(400)] = NO_TEXT
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class _Thread:
    frames: Annotated[tuple[_Frame, ...], MaxLength(500)]
    pid: int = 0
    thread_name: str = ""


@dataclass(frozen=True, kw_only=True)
class StackDump:
    """The main thread of one process, its innermost frame first."""

    pid: int
    rank: int | None
    frames: tuple[StackFrame, ...]

    @property
    def waits(self) -> bool:
        return classify_activity(self.frames) in _WAITS

    def __str__(self) -> str:
        place = find_user_frame(self.frames) or next(iter(self.frames), "no Python frame")
        name = f"process {self.pid}" if self.rank is None else f"rank {self.rank}"
        doing = classify_activity(self.frames)
        return f"{name} is at {place}" + (f" ({doing})" if doing else "")


def parse_stack_text(text: str, rank: int | None) -> list[StackDump]:
    """The output of `py-spy dump`, of one process or of several."""
    _before, *parts = re.split(r"^Process (\d{1,9}):", text, flags=re.MULTILINE)
    found = []
    for pid, body in zip(parts[::2], parts[1::2], strict=True):
        _start, *threads = _THREADS.split(body)
        main = _choose_main(list(zip(threads[::2], threads[1::2], strict=True)), "")
        frames = tuple(_make_frame(*each) for each in _FRAME.findall(main))
        found.append(StackDump(pid=int(pid), rank=rank, frames=frames))
    return found


def parse_stack_json(value: Any, rank: int | None) -> list[StackDump]:
    """The output of `py-spy dump --json`; raises a DecodeError."""
    threads = decode(tuple[_Thread, ...], value)
    main = _choose_main([(each.thread_name, each.frames) for each in threads], ())
    frames = tuple(_make_frame(each.name.raw(), each.filename.raw(), str(each.line)) for each in main)
    if not frames:
        raise DecodeError("no frames in it")
    return [StackDump(pid=threads[0].pid, rank=rank, frames=frames)]


def judge_stacks(dumps: Sequence[StackDump]) -> Iterator[Finding]:
    """Ranks that are elsewhere while most wait in a collective; a single stack shows where a process is, not why."""
    waiting = [each for each in dumps if each.waits]
    elsewhere = [each for each in dumps if not each.waits]
    if len(elsewhere) >= max(1, len(waiting)):
        return
    for each in elsewhere[:8]:
        diagnosis = _ELSEWHERE.get(classify_activity(each.frames), hang.ABSENT)
        others = f"{len(waiting)} other {agree(waiting, 'process waits', 'processes wait')} in a collective"
        yield diagnosis.finding(
            nodes=(),
            ranks=() if each.rank is None else (each.rank,),
            seen=f"{each}; {others} ({waiting[0]})",
            fix=hang.ABSENT.fix("again", pid=each.pid),
        )


def _choose_main(threads: list[tuple[str, Any]], default: Any) -> Any:
    return next((body for name, body in threads if name == "MainThread"), threads[0][1] if threads else default)


def _make_frame(name: str, file: str, line: str) -> StackFrame:
    """A frame with a path that shows whose file it is: py-spy leaves out the directories of sys.path."""
    first = re.split(r"[/.]", file, maxsplit=1)[0]
    start = "/site-packages/" if first in _PACKAGES else "/lib/python3/" if first in sys.stdlib_module_names else "/"
    path = file if file.startswith(("/", "<")) else start + file
    return StackFrame(file=Untrusted(path), line=line, name=Untrusted(name.rpartition(".")[2] or name))
