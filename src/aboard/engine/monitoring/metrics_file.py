"""Writes the figures of a run where node_exporter's textfile collector reads them: `metrics.textfile`."""

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import time
from typing import Self

from aboard.core.monitoring.prometheus_text import RunFigures, format_last_metrics, format_live_metrics
from aboard.core.run.event_kinds import Finished, Recovering, VerdictChanged
from aboard.core.run.events import Event
from aboard.core.run.run_state import Run
from aboard.diagnoses.usage import messages
from aboard.durable_files import open_without_link
from aboard.engine.conductor.conductor import Conductor, RunObserver
from aboard.engine.monitoring.run_notifier import note_undelivered
from aboard.record.run_record import Record

WRITE_SECONDS = 15.0
# How long a run's last figures remain, unless no other run follows.
KEPT_SECONDS = 86_400.0
# The longest time that the end of a run waits for a disk that hangs.
_FINISH_SECONDS = 1.0


class MetricsFile:
    """An observer that passes everything on to `run_observer`; without a directory, it does nothing else."""

    def __init__(self, folder: str, record: Record, run_observer: RunObserver) -> None:
        self._path = Path(folder) / f"aboard-{record.run.id}.prom" if folder else None
        self._record = record
        self._run_observer = run_observer
        self._conductor: Conductor | None = None
        self._verdicts: Counter[str] = Counter()
        # The verdict of the last attempt that was counted, and the last checkpoint with the time it was seen.
        self._counted: object = ()
        self._saved: tuple[float, float | None] | None = None
        self._next = 0.0
        self._thread: Thread | None = None
        self._problem = self._noted = ""
        self._is_clean = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None or self._path is None:
            return
        self._thread.join(_FINISH_SECONDS)
        if self._conductor is not None and self._conductor.run.finished is None and not self._thread.is_alive():
            with suppress(OSError):
                self._path.unlink()
        self._note_problem()

    def began(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._next = 0.0
        self._run_observer.began(conductor)

    def event(self, event: Event) -> None:
        self._run_observer.event(event)
        conductor = self._conductor
        if self._path is None:
            return
        if conductor is None:
            if isinstance(event.body, Finished):
                # A script that has started no ranks.
                figures = RunFigures(program="", world=0, now=event.at, verdicts={})
                self._write(format_last_metrics(Run(id=self._record.run.id), figures, event.body.code))
            return
        body, verdict = event.body, conductor.verdict
        if isinstance(body, VerdictChanged) and conductor.stall is not None:
            self._verdicts[conductor.stall.code] += 1
        elif isinstance(body, Recovering | Finished) and verdict and verdict is not self._counted:
            self._counted = verdict
            self._verdicts[verdict[0].code] += 1
        if isinstance(body, Finished):
            figures = self._build_figures(conductor, event.at)
            self._write(format_last_metrics(conductor.run, figures, body.code), patience=_FINISH_SECONDS)

    def tick(self, now: float) -> None:
        self._run_observer.tick(now)
        conductor = self._conductor
        if self._path is not None and conductor is not None and now >= self._next and conductor.run.finished is None:
            self._next = now + WRITE_SECONDS
            self._note_problem()
            self._write(format_live_metrics(conductor.run, self._build_figures(conductor, now)))

    def _build_figures(self, conductor: Conductor, now: float) -> RunFigures:
        metrics = conductor.run.metrics
        saved = metrics.get("saved")
        if saved is not None and (self._saved is None or self._saved[0] != saved):
            # The one that the run continued from is as old as nobody here knows.
            self._saved = saved, None if saved == metrics.get("start") else now
        moved = conductor.verdicts.watch.rhythm.moved
        return RunFigures(
            program=conductor.plan.program.target,
            world=conductor.plan.world,
            now=now,
            progressed=moved or None,
            saved=None if self._saved is None else self._saved[1],
            verdicts=self._verdicts,
            standing="" if conductor.stall is None else conductor.stall.code,
        )

    def _write(self, text: str, *, patience: float = 0.0) -> None:
        """Writes in a thread that nobody waits for: the directory may be on a disk that hangs."""
        if self._thread is not None:
            self._thread.join(patience)
            if self._thread.is_alive():
                self._problem = "the disk does not respond"
                return
        self._thread = Thread(target=self._replace_file, args=(text,), daemon=True)
        self._thread.start()

    def _replace_file(self, text: str) -> None:
        assert self._path is not None  # noqa: S101 - nothing is written otherwise
        try:
            _replace_public_file(self._path, text.encode("utf-8", "backslashreplace"))
            if not self._is_clean:
                self._is_clean = True
                _remove_old_files(self._path.parent)
            self._problem = ""
        except OSError as error:
            self._problem = error.strerror or type(error).__name__

    def _note_problem(self) -> None:
        if self._problem == self._noted or self._path is None:
            return
        self._noted, folder = self._problem, self._path.parent
        seen = f"metrics.textfile: can't write in {folder} on {os.uname().nodename}: {self._problem}"
        why, fix = seen if self._problem else "", messages.METRICS_UNWRITTEN.fix(folder=folder)
        note_undelivered(self._record, self._conductor, self._run_observer, "metrics.textfile", why, fix)


def _replace_public_file(path: Path, data: bytes) -> None:
    """Replaces it at once. node_exporter reads it as another user, whatever the umask is."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(open_without_link(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(data)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def _remove_old_files(folder: Path) -> None:
    """Those of this user's runs that ended, or whose conductor was killed, long ago."""
    for path in (*folder.glob("aboard-*.prom"), *folder.glob(".aboard-*.prom.*")):
        status = path.lstat()
        if status.st_uid == os.geteuid() and time() - status.st_mtime > KEPT_SECONDS:
            path.unlink()
