"""`python -m aboard.train`: runs one rank of a training, whose settings are JSON in the environment."""

import os
import sys
from time import time

from aboard.core.run.run_ledger import EarlierTime
from aboard.diagnoses import AboardError
from aboard.train.distributed.rank_context import join_process_group, leave_process_group
from aboard.train.job_spec import read_job_spec
from aboard.train.loop import train
from aboard.train.stop_requests import StopRequest

# The exit code that a shell reports for SIGTERM: the sender sees that it took effect.
_TERMINATED = 143


def main() -> int:
    try:
        return _run_rank()
    except AboardError as error:
        # The message says everything; a traceback into our code would only hide it.
        error.add_note(f"fix: {error.fix}")
        raise error.with_traceback(None) from None


def _run_rank() -> int:
    training = read_job_spec()
    world = join_process_group(training)
    stop_request = train(training, world, EarlierTime.of(os.environ, time()))
    leave_process_group(world)
    return _TERMINATED if stop_request is StopRequest.TERMINATE else 0


if __name__ == "__main__":
    sys.exit(main())
