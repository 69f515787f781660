"""`python -m aboard.engine.monitoring.message_sender`: delivers the messages of a run to one receiver.

The first line on stdin is the task, as JSON: the address is a secret. Each further byte says that there are messages,
the line `end` that there will be no more. Without that line, the end of stdin means that the conductor was killed,
which is a message, too. Problems are lines of JSON on stdout.

A message is noted as `trying` before it is sent and as `sent` after that. If this process is killed in between, the
next one sends it once more, with the same id, and no other one does.
"""

import json
import os
import select
import signal
import sys
from collections import Counter, deque
from pathlib import Path
from time import monotonic, time
from typing import Any

from aboard.durable_files import acquire_lock, open_without_link
from aboard.engine.monitoring.receivers import MessageProgram, Receiver, Undelivered, Webhook
from aboard.record.json_lines_journal import Journal, read_entries

# How long it tries on after the conductor's end, and how old a message may become before.
LAST_SECONDS = 60.0
OLDEST_SECONDS = 3600.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
_TRIES = 2


class MessageSender:
    """Delivers the messages in `messages`, in order, and notes in `deliveries` how that went."""

    def __init__(self, receiver: Receiver, messages: Path, deliveries: Path) -> None:
        self._receiver = receiver
        self._messages = messages
        self._notes = Journal(deliveries)
        self._read = 0
        self._waiting: deque[dict[str, Any]] = deque()
        self._pause = FIRST_PAUSE
        self._problem = ""
        # Messages that earlier processes were sending when they were killed.
        self._tries: Counter[str] = Counter()
        self._settled = set[str]()
        for note in read_entries(deliveries):
            name, state = str(note.get("id")), note.get("state")
            self._tries[name] = self._tries[name] + 1 if state == "trying" else 0
            if state in ("sent", "failed"):
                self._settled.add(name)

    def probe(self) -> None:
        """Reports a receiver that would not get messages."""
        try:
            self._receiver.probe()
        except Undelivered as error:
            self._report(str(error))

    def send_waiting(self) -> float | None:
        """Sends what waits; returns after how many seconds to try again, None if nothing waits."""
        for number, message in enumerate(read_entries(self._messages)):
            if number >= self._read:
                self._read = number + 1
                self._waiting.append(message)
        while self._waiting:
            if not self._settle(self._waiting[0]):
                self._pause = min(LONGEST_PAUSE, 2 * self._pause)
                return self._pause / 2
            self._waiting.popleft()
            self._pause = FIRST_PAUSE
        return None

    def add(self, message: dict[str, Any]) -> None:
        """Takes a message that is not in the record."""
        self._waiting.append(message)

    def give_up(self, why: str) -> None:
        for message in self._waiting:
            self._notes.append({"id": message.get("id"), "state": "failed", "at": time(), "why": why})

    def _settle(self, message: dict[str, Any]) -> bool:
        """Sends a message; returns whether nothing remains to be done for it."""
        name = str(message.get("id"))
        if name in self._settled or "text" not in message:
            return True
        state, why = "sent", ""
        if self._tries[name] >= _TRIES:
            state, why = "failed", "it was being sent twice when the sender was killed"
        elif time() - float(message.get("at", 0)) > OLDEST_SECONDS:
            state, why = "failed", "it is older than an hour"
        else:
            self._notes.append({"id": name, "state": "trying", "at": time()})
            try:
                self._receiver.send(message)
            except Undelivered as error:
                state, why = ("waiting" if error.safe else "failed"), str(error)
            except Exception as error:  # noqa: BLE001 - a bug of ours must not keep later messages back
                state, why = "failed", f"internal error: {type(error).__name__}"
        self._notes.append({"id": name, "state": state, "at": time(), **({"why": why} if why else {})})
        self._report(why)
        return state != "waiting"

    def _report(self, why: str) -> None:
        """Tells the conductor once that messages don't arrive, and once that they do again."""
        if why != self._problem:
            self._problem = why
            try:
                os.write(1, json.dumps({"why": why}).encode() + b"\n")
            except OSError:  # the conductor has ended
                return


def build_receiver(task: dict[str, Any]) -> Receiver:
    return (
        MessageProgram(task["command"]) if task["receiver"] == "command" else Webhook(task["address"], task["format"])
    )


def run_sender(task: dict[str, Any]) -> None:
    """Sends until there are no more messages."""
    deliveries = Path(task["deliveries"])
    lock = open_without_link(deliveries, os.O_RDWR | os.O_CREAT, 0o600)
    # That of the Slurm job before may still be trying.
    acquire_lock(lock, patience=LAST_SECONDS)
    sender = MessageSender(build_receiver(task), Path(task["messages"]), deliveries)
    sender.probe()
    said, deadline = b"", None
    while True:
        pause = sender.send_waiting()
        if deadline is not None and (pause is None or monotonic() >= deadline):
            sender.give_up("the run has ended")
            return
        if deadline is not None and pause is not None:
            pause = min(pause, deadline - monotonic())
        readable, _, _ = select.select([0] if deadline is None else [], [], [], pause)
        if readable:
            said = said[-4:] + (data := os.read(0, 65536))
            if not data:
                deadline = monotonic() + LAST_SECONDS
                if b"end\n" not in said:
                    sender.add(build_loss_message(task["run"], task["conductor"]))


def build_loss_message(run: str, conductor: int) -> dict[str, Any]:
    """The message that the conductor itself was killed, of which all receivers get the same id."""
    from aboard.core.monitoring.run_message import RunMessage  # noqa: PLC0415 - a sender must start quickly

    action = f"its ranks end when their lease is over; see: aboard why {run}"
    what = "has lost its conductor, the aboard process that controlled it"
    message = RunMessage(run=run, events=("failure", "end"), what=what, at=time(), action=action).build_document(0)
    return {**message, "id": f"{run}-lost-{conductor}"}


def main() -> None:
    # Ctrl-C and scancel are for the conductor, which then has something to say. Programs don't inherit a handler.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    line = b""
    # Byte by byte: what follows is read by select.
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    task = json.loads(line)
    if "deliveries" in task:
        run_sender(task)
        return
    try:
        build_receiver(task).probe()
    except Undelivered as error:
        sys.stdout.write(json.dumps({"why": str(error)}))


if __name__ == "__main__":
    main()
