"""A standby: a process that has done a rank's imports and waits until its supervisor makes it a rank."""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from threading import Thread
from typing import Any

from aboard.core.plan.rank_variables import STANDBY
from aboard.trainer.job_spec import read_job_spec

NICENESS = 10
READY = b"ready\n"


def wait_as_standby() -> None:
    """Returns once this process is a rank, which it mostly is from its start."""
    if os.environ.pop(STANDBY, None) is None:
        return
    importer = Thread(target=_import_niced)
    importer.start()
    importer.join()
    if "aboard.trainer.loop" not in sys.modules:
        # A rank that starts anew reports why.
        os._exit(1)
    os.write(0, READY)
    with os.fdopen(os.dup(0), "rb") as pipe:
        line = pipe.readline()
    if not line:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    _become_rank(json.loads(line))


def _import_niced() -> None:
    """In a thread of its own: only root can raise a priority again, and a rank must have the usual one."""
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    import_module("aboard.trainer.loop")
    with suppress(Exception):
        # transformers imports the code of a model, and PEFT, only when they are used. A rank that fails reports it.
        # The settings of the generation before name the model, too.
        training = read_job_spec()
        import_module("aboard.trainer.memory.estimate").profile_model(training)


def _become_rank(given: Mapping[str, Any]) -> None:
    os.environ.update(given["env"])
    beacon = getattr(sys.modules.get("aboard_beacon"), "armed", None)
    if beacon is not None:
        beacon.become_rank(given["ABOARD_CHILD"], given.get("ABOARD_AWAIT", ""))
