"""Trains on ranks that are forks of this process, which has imported torch with its simulated GPUs.

Its argument is a JSON list of the number of nodes, the ranks on each, the settings of the training, and the step that
the last rank doesn't survive, or null. The first rank that dies ends the others.
"""

import json
import os
import signal
import sys
import traceback
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from train_cases import trained
from train_crew import environment, free_port

from aboard.core.plan.training_settings import Training
from aboard.trainer import step
from aboard.trainer.distributed.rank_context import RankContext
from aboard.trainer.memory.out_of_memory import explain_out_of_memory


def die_at(number: int) -> None:
    """Kills this rank in the forward pass of its first micro-batch of this step."""
    forward, calls = step.forward_micro_batch, count(1)

    def die(*args: Any) -> torch.Tensor:
        if next(calls) == number:
            sys.stderr.write(f"killed at step {number}\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return forward(*args)

    step.forward_micro_batch = die  # type: ignore[assignment]


def run_rank(training: Training, rank: int, nodes: int, size: int, port: int) -> None:
    """Never returns."""
    code = 1
    try:
        os.environ |= environment(rank, size, port, nodes)
        trained(training)
        code = 0
    except torch.OutOfMemoryError as error:
        # As aboard.trainer.__main__ does.
        device = torch.device("cuda", rank % (size // nodes))
        context = RankContext(rank=rank, size=size, local_rank=device.index, device=device, sharding="full")
        told = explain_out_of_memory(error, training, context)
        sys.stderr.write(f"{told}\n{told.fix}\n")
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - this is a fork, which must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def main() -> int:
    nodes, ranks, settings, kill_at = json.loads(sys.argv[1])
    training, size, port = Training.of(settings), nodes * ranks, free_port()
    torch.set_num_threads(1)
    children = []
    for rank in range(size):
        child = os.fork()
        if not child:
            if kill_at is not None and rank == size - 1:
                die_at(kill_at)
            run_rank(training, rank, nodes, size, port)
        children.append(child)
    failed = 0
    for _ in range(size):
        child, status = os.wait()
        children.remove(child)
        if status and not failed:
            failed = 1
            for other in children:
                os.kill(other, signal.SIGKILL)
    return failed


if __name__ == "__main__":
    sys.exit(main())
