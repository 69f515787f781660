"""What a rank of the collective test runs: it meets the others, imports torch, measures, and prints its report."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback

from aboard.node_scripts.rank_watch import RankWatch


def main() -> None:
    task = json.loads(sys.argv[1])
    # The last resort, when something holds Python's lock: the watch can't run then.
    faulthandler.dump_traceback_later(task["within"], exit=True)
    # The token is no argument: every user of the node can read those.
    watch = RankWatch(task, os.environ.get("ABOARD_CHECK_TOKEN", ""))
    for name, value in task["defaults"].items():
        os.environ.setdefault(name, value)
    try:
        watch.meet_others()
        watch.enter_phase("import", task["load"])
        from aboard.node_scripts.rank_measurement import measure_collectives  # noqa: PLC0415 - imports torch

        measure_collectives(watch)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is reported
        last = str(error).strip().rpartition("\n")[2] or error
        text = "%s: %s" % (type(error).__name__, last)
        watch.finish(error=text[:500], stack=traceback.format_exc().splitlines()[-8:])
