"""Ranks on this machine that stay alive between jobs, so that torch is imported once."""

import gc
import os
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from secrets import randbelow
from typing import Any
from unittest.mock import patch

SIZE = 4
PATIENCE = 240.0
_PORTS = range(10_000, 32_000)
# What ranks would import one by one at their first job; each of them is a fork of the process that has it.
_PRELOADED = [
    "torch",
    "torch.distributed.fsdp",
    "torch.profiler",
    *(f"transformers.models.{family}.modeling_{family}" for family in ("llama", "qwen2", "gemma2", "mistral")),
    "peft",
    "aboard.trainer.loop",
]


class Crew:
    """Four processes, of which a job of N takes the first N."""

    def __init__(self) -> None:
        os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        self._ranks: list[tuple[ForkServerProcess, Connection]] = []

    def run(
        self, size: int, function: Callable[..., Any], *args: Any, nodes: int = 1, patience: float = PATIENCE
    ) -> list[Any]:
        """What `function(*args)` returns on each rank of a job over so many nodes; an error is raised here."""
        while len(self._ranks) < size:
            self._ranks.append(self._start())
        port = free_port()
        for rank, (_, line) in enumerate(self._ranks[:size]):
            line.send((environment(rank, size, port, nodes), function, args))
        answers = [self._answer(rank, patience) for rank in range(size)]
        failed = [f"rank {rank}: {trace}" for rank, (trace, _) in enumerate(answers) if trace]
        if failed:
            self.close()
            raise AssertionError("\n".join(failed))
        return [answer for _, answer in answers]

    def start_process(self, function: Callable[..., Any], *args: Any) -> ForkServerProcess:
        """A process beside the ranks, for a test that ends it; the result is its exit code."""
        process = self._context.Process(target=function, args=args, daemon=True)
        process.start()
        return process

    def close(self) -> None:
        for process, line in self._ranks:
            line.close()
            process.kill()
            process.join()
        self._ranks = []

    def _start(self) -> tuple[ForkServerProcess, Connection]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def _answer(self, rank: int, patience: float) -> tuple[str, Any]:
        _, line = self._ranks[rank]
        if not line.poll(patience):
            return f"no answer within {patience:.0f} s", None
        try:
            answer: tuple[str, Any] = line.recv()
        except EOFError:
            return "it is gone", None
        return answer


def run_alone(function: Callable[..., Any], *args: Any, patience: float = PATIENCE) -> Any:
    """What a job of one rank returns, in a process that has run no other job: it has one thread, and may fork."""
    crew = Crew()
    try:
        return crew.run(1, function, *args, patience=patience)[0]
    finally:
        crew.close()


def environment(rank: int, size: int, port: int, nodes: int = 1) -> dict[str, str]:
    """The environment variables that torchrun sets."""
    local = size // nodes
    numbers = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank % local, "LOCAL_WORLD_SIZE": local}
    return {name: str(number) for name, number in numbers.items()} | {
        "GROUP_RANK": str(rank // local),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def free_port() -> int:
    """A port that nobody listens at, below those that the kernel gives to the connections of other tests."""
    while True:
        with socket.socket() as listener, suppress(OSError):
            port = _PORTS.start + randbelow(len(_PORTS))
            listener.bind(("127.0.0.1", port))
            return port


def _serve(line: Connection) -> None:
    import torch  # noqa: PLC0415 - the process that asks needs none of it

    torch.set_num_threads(1)
    # A training calls the collector at its start, which would visit all that was imported: a third of a second each
    # time. It stays frozen; a training that ends would thaw it.
    gc.freeze()
    with patch.multiple(gc, freeze=_leave_frozen, unfreeze=_leave_frozen):
        _answer_jobs(line)


def _leave_frozen() -> None:
    """Instead of `gc.freeze` and `gc.unfreeze`."""


def _answer_jobs(line: Connection) -> None:
    while True:
        try:
            env, function, args = line.recv()
        except EOFError:
            return
        os.environ |= env
        try:
            answer = ("", function(*args))
        except BaseException:  # noqa: BLE001 - told, and raised where it was asked for
            answer = (traceback.format_exc(), None)
        line.send(answer)
