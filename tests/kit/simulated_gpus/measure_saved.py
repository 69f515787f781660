"""Prints, for each training, what the estimate says that a forward pass keeps for the backward, and what it keeps.

Its argument is a JSON list of settings. Ranks are forks of this process; the first one prints a line of JSON.
"""

import json
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from model_cases import saved_told_and_kept
from train_crew import environment, free_port

from aboard.core.plan.training_settings import Training


def run_rank(training: Training, rank: int, size: int, port: int) -> None:
    """Never returns."""
    code = 1
    try:
        os.environ |= environment(rank, size, port)
        found = saved_told_and_kept(training)
        if not rank:
            sys.stdout.write(json.dumps(found) + "\n")
        code = 0
    except BaseException:  # noqa: BLE001 - this is a fork, which must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def main() -> int:
    torch.set_num_threads(1)
    for settings in json.loads(sys.argv[1]):
        training, port = Training.of(settings), free_port()
        size = 2 if training.sharding == "full" else 1
        for rank in range(size):
            if not os.fork():
                run_rank(training, rank, size, port)
        if any(os.wait()[1] for _ in range(size)):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
