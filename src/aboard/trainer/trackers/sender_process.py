"""Starts the senders beside rank 0, and ends them with it."""

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

import aboard
from aboard.core.text.input_text import format_count
from aboard.trainer.diagnoses import training
from aboard.trainer.trackers.send_metrics import Sender, describe_failure, list_undelivered

# How long the end of a run waits for the trackers; one that still imports its library has more time.
FLUSH_SECONDS, START_SECONDS = 10.0, 30.0
# After an error, ranks and the user wait for this process.
FLUSH_AFTER_ERROR = 2.0
MODULE = "aboard.trainer.trackers"
_READY = b"r"
_SET_PARENT_DEATH_SIGNAL = 1


class TrackerSenders:
    """A process per tracker, so that one that hangs delays neither the training nor the others."""

    def __init__(self, output_dir: Path, trackers: Sequence[str]) -> None:
        self._folder = output_dir
        self._senders = {name: _SenderProcess(output_dir, name) for name in trackers}

    def finish(self, *, succeeded: bool, say: Callable[[str], None]) -> None:
        """Waits a bounded time until all lines are delivered; says which were not, and how to send them."""
        for sender in self._senders.values():
            sender.tell("end" if succeeded else "failed")
        began = monotonic()
        for sender in self._senders.values():
            sender.wait_until_ready(START_SECONDS - (monotonic() - began) if succeeded else 0.0)
        seconds = FLUSH_SECONDS if succeeded else FLUSH_AFTER_ERROR
        began = monotonic()
        late = [name for name, sender in self._senders.items() if not sender.wait(min(1.0, seconds))]
        if late:
            say(f"waiting up to {seconds:.0f} s for {' and '.join(late)}")
        for sender in self._senders.values():
            sender.wait(seconds - (monotonic() - began))
        for sender in self._senders.values():
            sender.kill()
        missing = list_undelivered(self._folder)
        for name in self._senders:
            if count := missing.get(name):
                fix = training.TRACKER.fix("later", folder=str(self._folder))
                say(f"warning: {name} has not confirmed {format_count(count, 'line')} of metrics.jsonl\n  fix: {fix}")


class _SenderProcess:
    def __init__(self, output_dir: Path, tracker: str) -> None:
        self._socket, theirs = socket.socketpair()
        home = str(Path(aboard.__file__).parents[1])
        path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH", "")]))
        argv = [sys.executable, "-P", "-m", MODULE, str(output_dir), tracker, str(os.getpid())]
        self._process = subprocess.Popen(argv, stdin=theirs.fileno(), env={**os.environ, "PYTHONPATH": path})
        theirs.close()

    def tell(self, word: str) -> None:
        try:
            self._socket.sendall(word.encode(), socket.MSG_DONTWAIT)
        except OSError:
            return

    def wait_until_ready(self, seconds: float) -> None:
        """Until its library is imported, or it has ended."""
        readable, _, _ = select.select([self._socket], [], [], max(0.0, seconds))
        if readable:
            self._socket.recv(1)

    def wait(self, seconds: float) -> bool:
        """Whether it ended within this time."""
        try:
            self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._socket.close()


def run_sender(output_dir: Path, tracker: str, parent: int) -> None:
    """The sender's process; never outlives the rank, and leaves the processors to it."""
    _die_with(parent)
    os.nice(10)
    # The rank says when to end: a signal to its process group, as by Ctrl-C, must not lose the last lines.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Libraries print, and start processes that inherit these files: only this process may hold the originals.
    rank, output = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)

    def say(text: str) -> None:
        os.write(output, f"{text}\n".encode())

    def wait(seconds: float) -> str:
        readable, _, _ = select.select([rank], [], [], seconds)
        if not readable:
            return ""
        word = os.read(rank, 100).decode()
        if not word:
            # The rank is gone.
            os._exit(1)
        return word

    try:
        sender = Sender(output_dir, tracker, say)
        os.write(rank, _READY)
        sender.send_until_end(wait)
    except Exception as error:  # noqa: BLE001 - a library that can't be imported must not end the run
        say(f"warning: {describe_failure(tracker, error)}")


def _die_with(parent: int) -> None:
    """Asks the kernel for SIGKILL when the rank dies; nothing else ends a process that hangs in a library."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
