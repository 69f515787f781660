"""Tells of a run: writes messages to its record, and wakes the processes that deliver them."""

import asyncio
import json
import os
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import time
from typing import Any, Self, assert_never

from aboard.core.decoding import parse_json
from aboard.core.evidence.verdict import SLOW
from aboard.core.monitoring.notify_settings import NotifySettings
from aboard.core.monitoring.run_message import RunMessage
from aboard.core.run import event_kinds as kinds
from aboard.core.run.events import Event
from aboard.core.run.recovery.recovery_policy import Action
from aboard.diagnoses import NO_FIX, AboardError, Finding
from aboard.diagnoses.untrusted import Untrusted
from aboard.engine.conductor.conductor import Conductor, RunObserver
from aboard.engine.conductor.stall_monitor import LOSS
from aboard.engine.monitoring.notify_problems import SENDER, build_problem, build_task
from aboard.lazy_dataclass import dataclass
from aboard.record.json_lines_journal import Journal, read_entries
from aboard.record.run_record import Record

# The longest time that the end of a run waits for its messages; their processes go on without it.
FINISH_SECONDS = 1.5
# The same verdict on a run that goes on is not told again before.
AGAIN_SECONDS = 600.0
# Of a sender that is killed again and again.
_MOST_STARTS = 3


@dataclass(frozen=True, kw_only=True)
class _Sender:
    receiver: str
    process: "subprocess.Popen[bytes]"
    stdin: int
    stdout: int
    ended: asyncio.Event


class RunNotifier:
    """An observer that passes everything on to `run_observer`, which also shows when messages don't arrive."""

    def __init__(
        self, settings: NotifySettings, record: Record, run_observer: RunObserver, environ: Mapping[str, str]
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._record = record
        self._run_observer = run_observer
        self._journal = Journal(record.run.messages)
        self._count = sum(1 for _ in read_entries(record.run.messages))
        self._conductor: Conductor | None = None
        self._senders: dict[str, _Sender] = {}
        self._starts: Counter[str] = Counter()
        self._problems: dict[str, Event] = {}
        self._is_finishing = False
        self._stalls: dict[tuple[str, tuple[str, ...]], float] = {}
        # Whether the last message was that something went wrong.
        self._is_bad = False

    async def __aenter__(self) -> Self:
        for receiver in self._settings.receivers:
            self._start(receiver)
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, AboardError) and self._conductor is None:
            self.tell_unstarted([error.diagnosis.finding(nodes=(), seen=error.seen, fix=error.fix)])
        await self._finish()
        self._journal.close()

    # -- what the run observer gets ----------------------------------------------------------------------

    def began(self, conductor: Conductor) -> None:
        self._conductor = conductor
        for problem in self._problems.values():
            conductor.run.apply(problem)
        self._run_observer.began(conductor)

    def tick(self, now: float) -> None:
        self._run_observer.tick(now)

    def event(self, event: Event) -> None:  # noqa: C901, PLR0912 - an arm for each kind
        self._run_observer.event(event)
        if self._conductor is None:
            body = event.body
            if isinstance(body, kinds.Finished) and not body.monitored:
                action = body.why.visible(500)
                self._tell("end", what="was not monitored", action=action, exit_code=body.code)
            return
        run = self._conductor.run
        verdict = self._conductor.verdict[0] if self._conductor.verdict else None
        match event.body:
            case kinds.Recovering(failure=failure, decision=decision, again=again):
                if not again and decision.action is not Action.STOP:
                    action = f"{decision.action.value}: {decision.why}"
                    self._tell("failure", what="has failed", verdict=verdict, nodes=failure.nodes, action=action)
            case kinds.VerdictChanged():
                self._tell_stall(self._conductor.stall)
            case kinds.SteppingStarted():
                if self._is_bad and run.recoveries:
                    last = run.recoveries[-1]
                    action = "; ".join(filter(None, (last.why, last.pause)))
                    self._tell("recovery", what="trains again", action=action)
            case kinds.Finished(code=code, why=why):
                if code == 0 or run.stopping:
                    what = "has finished" if code == 0 else f"was stopped: {run.stopping}"
                    self._tell("end", what=what, exit_code=code)
                else:
                    action = f"the run has ended: {why.visible(500)}"
                    self._tell("failure", "end", what="has failed", verdict=verdict, action=action, exit_code=code)
            case kinds.AttemptStarted() | kinds.CaughtUp() | kinds.Deciding() | kinds.Stopping() | kinds.Restarting():
                pass
            case kinds.Settling() | kinds.SpareChanged() | kinds.Unsent():
                pass
            case kinds.ChildReport() | kinds.NodeReport() | kinds.ConnectionChange() | kinds.Bookkeeping():
                pass
            case kinds.UnknownEvent():
                pass
            case forgotten:
                assert_never(forgotten)

    def note_end(self, end: kinds.Finished, *, refused: bool = False) -> None:
        """Records and shows the end of a script, if the last run that it started ended otherwise.

        That it was refused is told by `tell_unstarted`.
        """
        run = None if self._conductor is None else self._conductor.run
        if run is not None and run.finished is not None and run.finished.code == end.code:
            return
        event = Event(node="", at=time(), body=end)
        if run is not None:
            run.apply(event)
        self._record.event(event)
        (self._run_observer if refused else self).event(event)

    # -- messages ----------------------------------------------------------------------------------------

    def tell_unstarted(self, blockers: Sequence[Finding]) -> None:
        """Tells that no rank was started, or no further one, if something blocked the start."""
        if blockers:
            what = "was not started" if self._conductor is None else "has failed"
            self._tell("failure", "end", what=what, verdict=blockers[0])

    def _tell_stall(self, verdict: Finding | None) -> None:
        """Tells of a verdict on a run that goes on, or that it stands no more; of one that comes and goes, once."""
        if verdict is None:
            if self._is_bad:
                self._tell("recovery", what="makes progress again")
            return
        key = (verdict.code, verdict.nodes)
        if time() - self._stalls.get(key, 0.0) >= AGAIN_SECONDS:
            self._stalls[key] = time()
            # A run with a loss that is not finite goes on.
            others = {SLOW: "is slow", LOSS: "needs attention"}
            what = next((what for family, what in others.items() if verdict.code.startswith(family)), "is stuck")
            self._tell("stall", what=what, verdict=verdict)

    def _tell(self, *events: str, what: str, **values: Any) -> None:
        self._is_bad = events[0] in ("failure", "stall")
        if not self._settings.receivers or not any(event in self._settings.on for event in events):
            return
        run = None if self._conductor is None else self._conductor.run
        message = RunMessage(
            run=self._record.run.id,
            events=events,
            what=what,
            at=time(),
            attempt=1 if run is None else run.generation.number,
            step=None if run is None else run.step,
            **values,
        )
        self._count += 1
        if not self._journal.append(message.build_document(self._count)):
            self._note("record", "a message was lost: the disk of the record is full", NO_FIX)
        for sender in self._senders.values():
            self._write(sender, b"\n")

    # -- processes that deliver them ---------------------------------------------------------------------

    def _start(self, receiver: str) -> None:
        run = self._record.run
        try:
            task = build_task(self._settings, receiver, self._environ)
        except AboardError as error:
            self._note(receiver, error.seen, error.fix)
            return
        task |= {"run": run.id, "conductor": os.getpid(), "messages": str(run.messages)}
        task["deliveries"] = str(run.deliveries(receiver))
        pipe = subprocess.PIPE
        # In a session of its own: Ctrl-C is for the conductor, which then has something to say.
        process = subprocess.Popen(SENDER, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True)
        assert process.stdin is not None  # noqa: S101 - a pipe, see above
        assert process.stdout is not None  # noqa: S101 - a pipe, see above
        stdin, stdout = process.stdin.fileno(), process.stdout.fileno()
        sender = _Sender(receiver=receiver, process=process, stdin=stdin, stdout=stdout, ended=asyncio.Event())
        os.set_blocking(stdin, False)
        os.set_blocking(stdout, False)
        self._senders[receiver] = sender
        self._starts[receiver] += 1
        self._write(sender, json.dumps(task).encode() + b"\n")
        asyncio.get_running_loop().add_reader(stdout, self._read, sender)

    def _write(self, sender: _Sender, data: bytes) -> None:
        # A full pipe wakes it, too; one that was killed shows by the end of its output.
        with suppress(OSError):
            os.write(sender.stdin, data)

    def _read(self, sender: _Sender) -> None:
        """Takes the problems that a sender reports; each is a short line, which a pipe does not divide."""
        data = os.read(sender.stdout, 65536)
        for line in data.splitlines():
            self._note_problem(sender, parse_json(line)["why"])
        if not data:
            asyncio.get_running_loop().remove_reader(sender.stdout)
            sender.ended.set()
            if not self._is_finishing and self._starts[sender.receiver] < _MOST_STARTS:
                self._close(sender)
                self._start(sender.receiver)
            elif not self._is_finishing:
                self._note_problem(sender, "the process that sends messages was killed again and again")

    async def _finish(self) -> None:
        """Waits a bounded time until all messages are delivered."""
        self._is_finishing = True
        senders = self._senders.values()
        for sender in senders:
            self._write(sender, b"end\n")
            if sender.process.stdin is not None:
                sender.process.stdin.close()
        waits = [asyncio.create_task(sender.ended.wait()) for sender in senders]
        if waits:
            await asyncio.wait(waits, timeout=FINISH_SECONDS)
        for sender, wait in zip(senders, waits, strict=True):
            wait.cancel()
            if not sender.ended.is_set():
                asyncio.get_running_loop().remove_reader(sender.stdout)
                self._note_problem(sender, "not all messages are confirmed; a process goes on trying for a minute")
            self._close(sender)

    def _close(self, sender: _Sender) -> None:
        for stream in (sender.process.stdin, sender.process.stdout):
            if stream is not None:
                stream.close()
        if sender.ended.is_set():
            sender.process.wait()
        else:
            # It goes on without us: nobody waits for it.
            sender.process.returncode = 0

    def _note_problem(self, sender: _Sender, why: str) -> None:
        problem = build_problem(self._settings, sender.receiver, why)
        self._note(sender.receiver, *((problem.seen, problem.fix) if why else ("", NO_FIX)))

    def _note(self, receiver: str, why: str, fix: str) -> None:
        self._problems[receiver] = note_undelivered(
            self._record, self._conductor, self._run_observer, f"notify.{receiver}", why, fix
        )


def note_undelivered(
    record: Record, conductor: Conductor | None, observer: RunObserver, receiver: str, why: str, fix: str
) -> Event:
    """Records and shows that something does not arrive at a receiver; without a reason, that it does again."""
    unsent = kinds.Unsent(receiver=Untrusted(receiver), why=Untrusted(why), fix=Untrusted(fix))
    event = Event(node="", at=time(), body=unsent)
    if conductor is not None:
        conductor.run.apply(event)
    record.event(event)
    observer.event(event)
    return event
