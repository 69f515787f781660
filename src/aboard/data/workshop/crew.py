"""The workers that read rows: started, kept busy, and gone when it is over, however it ends."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic

from aboard.data.workshop.unit import Encode
from aboard.data.workshop.worker import Answer, AssembleOrder, Failed, Order, Told, serve
from aboard.diagnoses import AboardError, data
from aboard.diagnoses.catalogue import unpack_error

# A worker tells of its rows several times a second; a single row of the largest size takes minutes at most.
_SILENCE = 900.0
_LOOK = 0.5
_GOODBYE = 5.0


@contextmanager
def crew(size: int, encode: Encode | None) -> Iterator["Crew"]:
    """So many processes that know the encoder; without one they can look at rows only."""
    # Not forked: a tokenizer's threads and locks don't survive it.
    context = get_context("spawn")
    members: list[_Member] = []
    try:
        for number in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs,), name=f"aboard-data-{number}", daemon=True)
            process.start()
            theirs.close()
            members.append(_Member(process, ours))
        for member in members:
            member.send(encode)
        yield Crew(members)
    finally:
        for member in members:
            member.end()


class _Member:
    """One worker, and what it is doing."""

    def __init__(self, process: BaseProcess, connection: Connection) -> None:
        self.process = process
        self.connection = connection
        self.order: Order | None = None
        self.heard = monotonic()

    def send(self, message: Encode | Order | None) -> None:
        try:
            self.connection.send(message)
        except OSError as error:
            raise self.died() from error

    def died(self) -> AboardError:
        self.process.join(_GOODBYE)
        code = self.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        order = self.order
        doing = "" if order is None or isinstance(order, AssembleOrder) else f" at {order.chunk.file.visible(200)}"
        return AboardError(data.WORKER_DIED, f"worker {self.process.name} {how}{doing}")

    def end(self) -> None:
        """At once: whatever it was writing has no name yet."""
        self.process.kill()
        self.process.join(_GOODBYE)
        self.process.close()
        self.connection.close()


class Crew:
    """Gives orders to whoever is idle, and hands their answers on."""

    def __init__(self, members: list[_Member]) -> None:
        self._members = members

    def run(self, following: Callable[[], Order | None], answered: Callable[[Order, Answer], None]) -> None:
        """Until `following` has no more orders and all are answered; an order that fails ends it with its error."""
        while True:
            for member in self._members:
                if member.order is None and (order := following()) is not None:
                    member.send(order)
                    member.order, member.heard = order, monotonic()
            busy = [member for member in self._members if member.order is not None]
            if not busy:
                return
            ready = set(wait([member.connection for member in busy], _LOOK))
            for member in busy:
                if member.connection in ready:
                    self._hear(member, answered)
                elif monotonic() - member.heard > _SILENCE:
                    seen = f"worker {member.process.name} has said nothing for {_SILENCE:.0f} s"
                    raise AboardError(data.WORKER_SILENT, seen)

    def _hear(self, member: _Member, answered: Callable[[Order, Answer], None]) -> None:
        try:
            answer: Answer = member.connection.recv()
        except (EOFError, OSError) as error:
            raise member.died() from error
        if isinstance(answer, Failed):
            raise unpack_error(answer.error) or AboardError(
                data.WORKER, f"worker {member.process.name} failed, and did not say why", "report"
            )
        order, member.heard = member.order, monotonic()
        if order is None:
            return
        if not isinstance(answer, Told):
            member.order = None
        answered(order, answer)
