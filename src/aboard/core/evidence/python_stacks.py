"""Parses Python's stack dumps of a rank, and tells from the stack what the rank is doing or waiting for."""

import re
from collections.abc import Iterator, Sequence
from functools import cache

from aboard.diagnoses.untrusted import Untrusted, escape_text
from aboard.lazy_dataclass import dataclass

_FRAME = re.compile(r'\s*File "(?P<file>[^"]*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)')
_TRACEBACK = "Traceback (most recent call last)"
_TRACEBACK_FRAME = re.compile(r'\s*File "(?P<file>[^"]*)", line (?P<line>\d+)(?:, in (?P<name>.*))?')
_THREAD = re.compile(r"^(?:Thread|Current thread) 0x", re.MULTILINE)
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3[^/]*/|^<frozen |/lib64/python3[^/]*/|\.zip/")
# Aboard's own files in a rank: the beacon and the trainer, from its archive, an installation or a checkout.
_OURS = re.compile(r"/aboard_beacon|/code\.zip/|/(site|dist)-packages/aboard/|/src/aboard/")
_PACKAGE = re.compile(r"/(site|dist)-packages/(?!torch/)")
# Recomputing activations is called checkpointing, too, and saves nothing.
_RECOMPUTATION = re.compile(r"/torch/utils/checkpoint\.py$|/checkpoint_wrapper\.py$|/activation_checkpointing/")
# What a frame means, by its file, its function, or both; the innermost frame that matches decides.
_KINDS = (
    ("import", re.compile(r"^<frozen importlib|/importlib/"), None),
    ("checkpoint", re.compile(r"/torch/serialization\.py$|/torch/distributed/checkpoint/|/safetensors/"), None),
    (
        "checkpoint",
        None,
        re.compile(r"save_(checkpoint|model|pretrained|state|to_disk)|_?write_checkpoint|(?<!gradient_)checkpoint"),
    ),
    ("data", re.compile(r"/torch/utils/data/|/datasets/|/webdataset/|/litdata/|/streaming/"), None),
    ("data", None, re.compile(r"(load|read|next|fetch)_(batch|sample|shard|example|data)|data_?load")),
    ("evaluation", None, re.compile(r"^_?(evaluate|evaluation|validate|validation|run_eval|eval_)\w*|evaluation_loop")),
    ("store", re.compile(r"/torch/distributed/(rendezvous|distributed_c10d)\.py$"), re.compile(r"store|rendezvous")),
    (
        "group",
        re.compile(r"/torch/distributed/distributed_c10d\.py$"),
        re.compile(r"init_process_group|new_group|_new_p"),
    ),
    ("collective", re.compile(r"/torch/distributed/|/torch/nn/parallel/distributed\.py$"), None),
    ("collective", re.compile(r"/torch/autograd/graph\.py$"), re.compile(r"_engine_run_backward")),
    ("child", re.compile(r"/subprocess\.py$|/multiprocessing/popen"), None),
    ("network", re.compile(r"/(socket|ssl|http/client|selectors)\.py$|/(urllib3|requests|httpx|aiohttp)/"), None),
    (
        "lock",
        re.compile(r"/threading\.py$|/multiprocessing/synchronize\.py$"),
        re.compile(r"acquire|wait|join|__enter__"),
    ),
    ("queue", re.compile(r"/queue\.py$|/multiprocessing/(queues|connection)\.py$"), None),
    ("compile", re.compile(r"/torch/_(dynamo|inductor)/|/triton/"), None),
)


@dataclass(frozen=True, kw_only=True)
class StackFrame:
    """One line of a stack."""

    file: Untrusted
    line: str
    name: Untrusted

    @property
    def library(self) -> bool:
        return self.file.match(_LIBRARY) is not None

    def __str__(self) -> str:
        place = f"{escape_text(self.file.raw().rpartition('/')[2])}:{self.line}"
        return f"{place} in {self.name.visible()}" if self.name else place


@cache
def parse_main_thread(stack: Untrusted) -> tuple[StackFrame, ...]:
    """The frames of the main thread, innermost first; a dump has that thread last."""
    *_, last = _parse_threads(stack.raw())
    return tuple(last)


@cache
def parse_traceback(trace: Untrusted) -> tuple[StackFrame, ...]:
    """The frames of the last traceback, where an exception was raised first; that is the opposite order of a dump."""
    found = (_TRACEBACK_FRAME.match(line) for line in trace.raw().rpartition(_TRACEBACK)[2].splitlines())
    frames = [
        StackFrame(file=Untrusted(each["file"]), line=each["line"], name=Untrusted((each["name"] or "").strip()))
        for each in found
        if each
    ]
    return tuple(reversed(frames))


def extract_main_thread(stack: str) -> str:
    """The dump without its other threads: only the main thread is judged, and it is often a tenth of the dump."""
    starts = [found.start() for found in _THREAD.finditer(stack)]
    return stack[starts[-1] :] if starts else stack


def find_user_frame(frames: Sequence[StackFrame]) -> StackFrame | None:
    """The innermost frame in the user's own code, else in a package such as the model's; None if there is neither.

    Python's own files, torch and Aboard's trainer are no place to look.
    """
    others = [frame for frame in frames if frame.file.match(_OURS) is None]
    own = next((frame for frame in others if not frame.library), None)
    return own or next((frame for frame in others if frame.file.match(_PACKAGE) is not None), None)


def classify_activity(frames: Sequence[StackFrame]) -> str:
    """The rank's activity: import, store, group, collective, data, checkpoint, evaluation, lock …; "" if none fits.

    A purpose (a checkpoint, an evaluation) takes precedence over how the rank waits.
    """
    found = [activity for frame in frames for activity in _classify_frame(frame)]
    purposes = [activity for activity in found if activity in _PURPOSES]
    return (purposes or found or [""])[0]


_PURPOSES = ("import", "checkpoint", "evaluation", "data", "compile")


def _classify_frame(frame: StackFrame) -> Iterator[str]:
    if frame.file.match(_RECOMPUTATION):
        return
    for activity, file, name in _KINDS:
        if (file is None or frame.file.match(file)) and (name is None or frame.name.match(name)):
            # A function's name is meaningful only in the user's code.
            if file is not None or not frame.library or "/site-packages/" in frame.file:
                yield activity
            return


def _parse_threads(stack: str) -> Iterator[list[StackFrame]]:
    frames: list[StackFrame] = []
    for line in stack.splitlines():
        if line.startswith(("Thread 0x", "Current thread 0x")):
            if frames:
                yield frames
            frames = []
        elif found := _FRAME.match(line):
            frames.append(
                StackFrame(file=Untrusted(found["file"]), line=found["line"], name=Untrusted(found["name"].strip()))
            )
    yield frames
