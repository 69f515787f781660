"""Sends the lines of metrics.jsonl to one tracker, from where it stopped, for as long as it takes."""

import errno
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from aboard.diagnoses import Fix
from aboard.diagnoses.untrusted import escape_text
from aboard.durable_files import hold_lock
from aboard.trainer.diagnoses import training
from aboard.trainer.trackers.tracked_run import FOLDER, METRICS, Cursor, TrackedRun, count_lines, scrub
from aboard.trainer.trackers.tracker_clients import CLIENTS, TrackerClient

# Lines of one request.
_BATCH = 50
_FIRST_PAUSE, _LONGEST_PAUSE, _IDLE = 1.0, 30.0, 0.5
# Waits so many seconds for the rank: "end" or "failed" once there are no more lines, "" if there is nothing yet.
WaitForRank = Callable[[float], str]


class Sender:
    """One tracker of one run. A failure is reported once, and again when it is over; no line is skipped."""

    def __init__(self, output_dir: Path, tracker: str, say: Callable[[str], None]) -> None:
        self._folder = output_dir
        self._tracker = tracker
        self._say = say
        run = TrackedRun.load(output_dir)
        if run is None:
            raise FileNotFoundError(f"{output_dir / FOLDER} describes no run")
        self._run = run
        if (output_dir / tracker).is_symlink():  # of a cloned directory: the libraries would write through it
            raise OSError(errno.ELOOP, "it is a link, which Aboard doesn't follow", str(output_dir / tracker))
        self._client: TrackerClient = CLIENTS[tracker](output_dir)
        self._cursor = Cursor.load(output_dir, tracker, run.id)
        self._tail: MetricsTail | None = None

    def send_until_end(self, wait: WaitForRank) -> None:
        """Sends lines as they are written, until the rank says that there are no more and all are delivered."""
        with hold_lock(self._folder / FOLDER / f"{self._tracker}.lock", patience=_LONGEST_PAUSE):
            word, pause, failing = "", _FIRST_PAUSE, False
            while True:
                try:
                    while self._send_next():
                        word = wait(0.0) or word
                    if word:
                        self._close(succeeded=word == "end")
                        return
                except Exception as error:  # noqa: BLE001 - a library's failure of any kind is reported and retried
                    self._tail = None
                    if not failing:
                        self._say(f"warning: {describe_failure(self._tracker, error)}")
                        self._say(f"{self._tracker}: training continues; the metrics are sent when it works again")
                    failing, pause = True, _FIRST_PAUSE if word else min(2 * pause, _LONGEST_PAUSE)
                else:
                    if failing:
                        self._say(f"{self._tracker}: works again; all lines so far are sent")
                    failing, pause = False, _FIRST_PAUSE
                word = wait(pause if failing else _IDLE) or word

    def send_rest(self) -> None:
        """Sends what a run could not send; raises what the tracker's library raises."""
        with hold_lock(self._folder / FOLDER / f"{self._tracker}.lock", patience=1.0):
            last: Mapping[str, Any] = {}
            while lines := self._send_next():
                last = lines[-1]
            self._close(succeeded="wall" in last)

    def _send_next(self) -> list[dict[str, Any]]:
        """Sends the next lines, if there are any, and returns them."""
        if self._tail is None:
            self._cursor = self._client.open(self._run, self._cursor).save(self._folder, self._tracker)
            self._tail = MetricsTail(self._folder / METRICS, self._cursor.lines)
        lines = self._tail.read(_BATCH)
        if lines:
            before, self._cursor = self._cursor, self._client.send(lines, self._cursor)
            if self._cursor != before:
                self._cursor.save(self._folder, self._tracker)
        return lines

    def _close(self, *, succeeded: bool) -> None:
        note = self._client.close(succeeded=succeeded)
        sent = self._tail.lines if self._tail is not None else self._cursor.lines
        rows = self._cursor.rows + sent - self._cursor.lines
        replace(self._cursor, lines=sent, rows=rows).save(self._folder, self._tracker)
        if note is not None:
            self._say(note)


class MetricsTail:
    """Reads complete lines as they are appended; `lines` are those read so far."""

    def __init__(self, path: Path, lines: int) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""
        self._skip = lines
        self.lines = 0

    def read(self, limit: int) -> list[dict[str, Any]]:
        if self._file is None:
            if not self._path.exists():
                return []
            self._file = self._path.open("rb")
        found: list[dict[str, Any]] = []
        while len(found) < limit and (part := self._file.readline()):
            self._rest += part
            if not self._rest.endswith(b"\n"):
                break
            line, self._rest = self._rest, b""
            self.lines += 1
            if self.lines > self._skip:
                found.append(json.loads(line))
        return found


def describe_failure(tracker: str, error: BaseException) -> str:
    """What happened, without secrets, and what to do about it."""
    text = " ".join(str(scrub(f"{type(error).__name__}: {error}", os.environ)).split())
    return f"{tracker} does not accept metrics: {escape_text(text, 300)}\n  fix: {_choose_fix(tracker, text)}"


# Of a login that is missing or refused.
_REFUSALS = ("401", "403", "unauthenticated", "permission", "api key", "api_key", "usageerror")


def _choose_fix(tracker: str, text: str) -> Fix:
    lowered = text.lower()
    if tracker != "tensorboard" and any(sign in lowered for sign in _REFUSALS):
        return training.TRACKER.fix(f"login-{tracker}")
    if "resolve" in lowered or "name or service" in lowered:
        return training.TRACKER.fix("host", variable="WANDB_BASE_URL" if tracker == "wandb" else "MLFLOW_TRACKING_URI")
    return training.TRACKER.fix("wait")


def list_undelivered(output_dir: Path) -> dict[str, int]:
    """The lines of metrics.jsonl that each tracker has not confirmed."""
    run = TrackedRun.load(output_dir)
    if run is None:
        return {}
    total = count_lines(output_dir / METRICS)
    used = [name for name in CLIENTS if (output_dir / FOLDER / f"{name}.json").exists()]
    cursors = {name: Cursor.load(output_dir, name, run.id).settle() for name in used}
    return {name: total - cursor.lines for name, cursor in cursors.items() if cursor.lines < total}


def send_undelivered(output_dir: Path) -> int:
    """`python -m aboard.trainer.trackers OUTPUT_DIR`: sends what runs in this directory could not; the exit code."""
    missing = list_undelivered(output_dir)
    failed = 0
    for tracker, count in missing.items():
        try:
            Sender(output_dir, tracker, _print).send_rest()
        except Exception as error:  # noqa: BLE001 - a library's failure of any kind is reported
            _print(describe_failure(tracker, error))
            failed = 1
        else:
            _print(f"{tracker}: sent {count} lines")
    if not missing:
        _print("every tracker of this directory has all lines")
    return failed


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
