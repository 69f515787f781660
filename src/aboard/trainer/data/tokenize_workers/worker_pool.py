"""The pool of workers that read rows: starts them, keeps them busy, and always terminates them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context, util
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from subprocess import _args_from_interpreter_flags as list_own_flags  # type: ignore[attr-defined]
from time import monotonic

from aboard.diagnoses import AboardError
from aboard.diagnoses.catalogue import unpack_error
from aboard.trainer.data.tokenize_workers.encoded_unit import RowEncoder
from aboard.trainer.data.tokenize_workers.worker_process import (
    AssembleOrder,
    WorkerAnswer,
    WorkerFailure,
    WorkerOrder,
    WorkerProgress,
    run_worker,
)
from aboard.trainer.diagnoses import data

# A worker reports several times a second; a single row of the largest size takes minutes at most.
_SILENCE_TIMEOUT = 900.0
_POLL_SECONDS = 0.5
_EXIT_TIMEOUT = 5.0


@contextmanager
def start_workers(size: int, encoder: RowEncoder | None) -> Iterator["WorkerPool"]:
    """Starts `size` processes with the encoder; without one they can only inspect rows."""
    # Not forked: a tokenizer's threads and locks don't survive it.
    context = get_context("spawn")
    util._args_from_interpreter_flags = _list_interpreter_flags  # type: ignore[attr-defined]  # noqa: SLF001 - below
    workers: list[_WorkerHandle] = []
    try:
        for number in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=run_worker, args=(theirs,), name=f"aboard-data-{number}", daemon=True)
            process.start()
            theirs.close()
            workers.append(_WorkerHandle(process, ours))
        for member in workers:
            member.send(encoder)
        yield WorkerPool(workers)
    finally:
        for member in workers:
            member.end()


def _list_interpreter_flags() -> list[str]:
    """With -P: workers start as `python -c`, which would import a multiprocessing.py of the working directory."""
    return list(dict.fromkeys([*list_own_flags(), "-P"]))


class _WorkerHandle:
    """One worker and its current order."""

    def __init__(self, process: BaseProcess, connection: Connection) -> None:
        self.process = process
        self.connection = connection
        self.order: WorkerOrder | None = None
        self.last_message = monotonic()

    def send(self, message: RowEncoder | WorkerOrder | None) -> None:
        try:
            self.connection.send(message)
        except OSError as error:
            raise self.make_death_error() from error

    def make_death_error(self) -> AboardError:
        self.process.join(_EXIT_TIMEOUT)
        code = self.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"exited with code {code}"
        order = self.order
        doing = "" if order is None or isinstance(order, AssembleOrder) else f" at {order.chunk.file.visible(200)}"
        return AboardError(data.WORKER_DIED, f"worker {self.process.name} {how}{doing}")

    def end(self) -> None:
        """Kills it at once: files that it was writing have no final name yet."""
        self.process.kill()
        self.process.join(_EXIT_TIMEOUT)
        self.process.close()
        self.connection.close()


class WorkerPool:
    """Gives orders to idle workers, and passes on their results."""

    def __init__(self, members: list[_WorkerHandle]) -> None:
        self._members = members

    def run(
        self, next_order: Callable[[], WorkerOrder | None], on_answer: Callable[[WorkerOrder, WorkerAnswer], None]
    ) -> None:
        """Runs until `next_order` has no more orders and all are done; a failed order raises its error."""
        while True:
            for member in self._members:
                if member.order is None and (order := next_order()) is not None:
                    member.send(order)
                    member.order, member.last_message = order, monotonic()
            busy = [member for member in self._members if member.order is not None]
            if not busy:
                return
            ready = set(wait([member.connection for member in busy], _POLL_SECONDS))
            for member in busy:
                if member.connection in ready:
                    self._receive(member, on_answer)
                elif monotonic() - member.last_message > _SILENCE_TIMEOUT:
                    seen = f"worker {member.process.name} has not responded for {_SILENCE_TIMEOUT:.0f} s"
                    raise AboardError(data.WORKER_SILENT, seen)

    def _receive(self, member: _WorkerHandle, on_answer: Callable[[WorkerOrder, WorkerAnswer], None]) -> None:
        try:
            answer: WorkerAnswer = member.connection.recv()
        except (EOFError, OSError) as error:
            raise member.make_death_error() from error
        if isinstance(answer, WorkerFailure):
            raise unpack_error(answer.error) or AboardError(
                data.WORKER, f"worker {member.process.name} failed and gave no reason", "report"
            )
        order, member.last_message = member.order, monotonic()
        if order is None:
            return
        if not isinstance(answer, WorkerProgress):
            member.order = None
        on_answer(order, answer)
