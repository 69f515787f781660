"""Saves in a background thread; training waits only until its state is copied, before it changes."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from threading import Event, Thread
from time import monotonic
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from aboard.diagnoses import AboardError, TrainerError
from aboard.trainer.checkpoint.checkpoint_writer import CheckpointState, CheckpointWriter
from aboard.trainer.checkpoint.staging_buffers import StagedFile
from aboard.trainer.diagnoses import checkpoint

# Books a wait in the time ledger for as long as it lasts.
TimeBooking = Callable[[], AbstractContextManager[None]]


class CopyBarrier:
    """Blocks the optimizer's next step until the copy is done; forward and backward change no saved state.

    The wait is booked by `spent`, or else the ledger would count it as the optimizer's.
    """

    def __init__(self, *, patience: float, spent: TimeBooking = nullcontext) -> None:
        self.waited = 0.0
        self._patience = patience
        self._spent = spent
        self._event = Event()
        self._event.set()
        self._optimizer: torch.optim.Optimizer | None = None
        self._hook: RemovableHandle | None = None

    def guard(self, optimizer: torch.optim.Optimizer) -> None:
        """Guards this optimizer from now on; one hook for the whole run, free of cost while no copy is under way."""
        self._event.clear()
        if self._optimizer is not optimizer:
            self.leave()
            self._optimizer, self._hook = optimizer, optimizer.register_step_pre_hook(self._wait)

    def release(self) -> None:
        self._event.set()

    def leave(self) -> None:
        if self._hook is not None:
            self._hook.remove()

    def _wait(self, *_: Any) -> None:
        if not self._event.is_set():
            began = monotonic()
            with self._spent():
                if not self._event.wait(self._patience):
                    raise _build_timeout_error(self._patience)
            self.waited += monotonic() - began


class BackgroundSave:
    """Runs in a daemon thread, so that it doesn't keep a failing process alive."""

    def __init__(
        self, writer: CheckpointWriter, state: CheckpointState, barrier: CopyBarrier, *, patience: float
    ) -> None:
        self._patience = patience
        self._notes: list[str] = []
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, args=(writer, state, barrier), name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> list[str]:
        """The notes of the finished save; raises its error."""
        self._thread.join(self._patience)
        if not self.done:
            raise _build_timeout_error(self._patience)
        if self._error is not None:
            raise self._error
        return self._notes

    def _run(self, writer: CheckpointWriter, state: CheckpointState, barrier: CopyBarrier) -> None:
        def copy() -> list[StagedFile]:
            try:
                return state.copy()
            finally:
                barrier.release()

        try:
            self._notes = writer.save(replace(state, copy=copy))
        except BaseException as error:  # noqa: BLE001 - raised again where training polls
            self._error = error
        finally:
            barrier.release()


def _build_timeout_error(patience: float) -> AboardError:
    return TrainerError(checkpoint.STUCK, f"a checkpoint was not complete after {patience:.0f} s")
