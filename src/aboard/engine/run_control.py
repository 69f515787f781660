"""Who may stop a run: signals, Slurm and other commands, by way of the conductor while there is one."""

import asyncio
import signal
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from typing import Self

from aboard.core.run.events import Event
from aboard.core.slurm.job_ending import JobEnding
from aboard.engine.conductor.conductor import Conductor, RunObserver
from aboard.engine.conductor.control_socket import serve_control, serve_script_control
from aboard.engine.slurm.job_conductor import JobWatch
from aboard.record.run_directory import RunDirectory


class RunControl:
    """Hands the conductor to signals and other commands when its run begins; passes all news on to `run_observer`.

    Before a script's first run, and between two of its runs, they end the script.
    """

    def __init__(self, run: RunDirectory, signals: "RunSignals", run_observer: RunObserver, *, is_script: bool) -> None:
        self._run = run
        self._signals = signals
        self._run_observer = run_observer
        self._is_script = is_script
        self._serving = AsyncExitStack()
        self._changes: list[asyncio.Task[None]] = []
        self._changing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        if self._is_script:
            self._serve_for(None)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*self._changes)
        await self._serving.aclose()

    @property
    def conductor(self) -> Conductor | None:
        return self._signals.conductor

    def began(self, conductor: Conductor) -> None:
        self._serve_for(conductor)
        self._run_observer.began(conductor)

    def ended(self) -> None:
        """A run of a script is over."""
        self._serve_for(None)

    def event(self, event: Event) -> None:
        self._run_observer.event(event)

    def tick(self, now: float) -> None:
        self._run_observer.tick(now)

    def _serve_for(self, conductor: Conductor | None) -> None:
        self._signals.conductor = conductor
        self._changes.append(asyncio.create_task(self._change(conductor)))

    async def _change(self, conductor: Conductor | None) -> None:
        async with self._changing:
            await self._serving.aclose()
            if conductor is not None:
                await self._serving.enter_async_context(serve_control(self._run, conductor))
            else:
                await self._serving.enter_async_context(serve_script_control(self._run, self._signals.stop))


class RunSignals:
    """A signal cancels the preflight; once there is a conductor, it stops the run: first gently, then immediately.

    Slurm's signals stop the run only once, since Slurm repeats them, and kills the job by itself.
    """

    def __init__(self, watch: JobWatch | None) -> None:
        self.conductor: Conductor | None = None
        self._watch = watch
        self._task = asyncio.current_task()
        self._asking: set[asyncio.Task[None]] = set()
        self._ending = False
        self._why = ""

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._handle_signal, number.name)
        if self._watch is not None:
            for number in (signal.SIGTERM, signal.SIGUSR1):
                loop.add_signal_handler(number, self._handle_slurm_signal, self._watch, number.name)
            self._stop_after(self._watch.wait_for_notice())
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._asking:
            task.cancel()

    @property
    def interrupt(self) -> KeyboardInterrupt | None:
        """What a launch raises that a signal stopped before it had a conductor."""
        return KeyboardInterrupt(self._why) if self._why else None

    def stop(self, why: str) -> None:
        """Stops the run, or what precedes it."""
        self._stop(why, None)

    def _handle_signal(self, name: str) -> None:
        self._stop(f"aboard received {name}", None)

    def _handle_slurm_signal(self, watch: JobWatch, name: str) -> None:
        if self.conductor is not None:
            self.conductor.expect_stop()
        self._stop_after(watch.explain_signal(name))

    def _stop_after(self, explanation: Awaitable[JobEnding]) -> None:
        task = asyncio.create_task(self._stop_for_slurm(explanation))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _stop_for_slurm(self, explanation: Awaitable[JobEnding]) -> None:
        ending = await explanation
        # The user may have stopped the run before: Slurm's signal must not cut short what ranks are saving.
        stopping = self.conductor is not None and bool(self.conductor.run.stopping)
        if not self._ending and not stopping:
            self._ending = True
            self._stop(ending.why, ending.seconds)

    def _stop(self, why: str, within: float | None) -> None:
        if self.conductor is not None:
            self.conductor.stop(why, within=within)
        elif self._task is not None:
            self._why = why
            self._task.cancel()
