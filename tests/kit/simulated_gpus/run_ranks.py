"""Trains on ranks that are forks of this process, which has imported torch with its simulated GPUs.

Its argument is a JSON list of the number of nodes, the ranks on each, and the settings of the training.
"""

import json
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from train_cases import trained
from train_crew import environment, free_port

from aboard.core.plan.training_settings import Training


def run_rank(training: Training, rank: int, nodes: int, size: int, port: int) -> None:
    """Never returns."""
    code = 1
    try:
        os.environ |= environment(rank, size, port, nodes)
        trained(training)
        code = 0
    except BaseException:  # noqa: BLE001 - this is a fork, which must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def main() -> int:
    nodes, ranks, settings = json.loads(sys.argv[1])
    training, size, port = Training.of(settings), nodes * ranks, free_port()
    torch.set_num_threads(1)
    children = []
    for rank in range(size):
        child = os.fork()
        if not child:
            run_rank(training, rank, nodes, size, port)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main())
