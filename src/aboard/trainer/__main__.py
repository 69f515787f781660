"""`python -m aboard.trainer`: runs one rank of a training run, whose settings are JSON in the environment."""

import os
import sys
from collections.abc import MutableMapping
from time import time

from aboard.core.run.run_ledger import EarlierTime
from aboard.diagnoses import AboardError
from aboard.trainer.job_spec import read_job_spec
from aboard.trainer.standby import wait_as_standby

# The exit code that a shell reports for SIGTERM: the sender sees that it took effect.
_TERMINATED = 143


def main() -> int:
    prefer_expandable_segments(os.environ)
    wait_as_standby()
    try:
        return _run_rank()
    except AboardError as error:
        # The message says everything; a traceback into our code would only hide it.
        error.add_note(f"fix: {error.fix}")
        raise error.with_traceback(None) from None


def prefer_expandable_segments(environ: MutableMapping[str, str]) -> None:
    """Rows differ in length: with segments of fixed sizes, the CUDA allocator keeps parts that fit no later row.

    The variable has two names, of which the user's decides; torch reads it when it is imported.
    """
    if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & set(environ):
        environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"


def _run_rank() -> int:
    # Imported here: a standby imports them with a lower priority, before it is a rank.
    from torch import OutOfMemoryError  # noqa: PLC0415

    from aboard.trainer.distributed.rank_context import join_process_group, leave_process_group  # noqa: PLC0415
    from aboard.trainer.loop import train  # noqa: PLC0415
    from aboard.trainer.memory.out_of_memory import explain_out_of_memory  # noqa: PLC0415
    from aboard.trainer.stop_requests import StopRequest  # noqa: PLC0415

    training = read_job_spec()
    world = join_process_group(training)
    try:
        stop_request = train(training, world, EarlierTime.of(os.environ, time()))
    except OutOfMemoryError as error:
        raise explain_out_of_memory(error, training, world) from error
    leave_process_group(world)
    return _TERMINATED if stop_request is StopRequest.TERMINATE else 0


if __name__ == "__main__":
    sys.exit(main())
