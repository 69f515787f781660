"""Diagnoses of runs and bundles that can't be found, created or read."""

from aboard.diagnoses.diagnosis import Diagnosis, Mistake
from aboard.diagnoses.fixes import Advice
from aboard.diagnoses.shared_fixes import SUGGESTED

RUN_NONE = Mistake(
    code="run-none",
    fixes={
        "launch": "aboard launch -- train.py    # creates a run",
        "others": "aboard launch -- train.py    # creates the first run\n"
        "aboard why --nodes NODES    # for a different launcher's job; or --log FILE, for its output\n"
        "aboard why --codes    # lists all codes",
    },
)

RUN_NAME = Mistake(
    code="run-name",
    fixes={
        "longer": Advice("type more of the run's name"),
        "first": "aboard launch -- train.py    # creates the first run",
        **SUGGESTED,
    },
)

RUN_DIRECTORY = Diagnosis(
    code="run-directory",
    title="the run directory can't be created",
    symptoms=("no run directory can be created under",),
    explanation="Aboard records runs below `~/.local/state/aboard`, and can't write there.",
    fixes={
        "wait": Advice("wait a minute, and run the command again"),
        "elsewhere": "XDG_STATE_HOME=/a/disk/with/room aboard launch …",
        "look": "ls -ld {folder}",
    },
)

STATE_FOREIGN = Diagnosis(
    code="state-foreign",
    title="another user can write where Aboard keeps its records",
    symptoms=("others can write to", "belongs to uid"),
    explanation="Aboard keeps records in `$XDG_STATE_HOME/aboard` and caches in `$XDG_CACHE_HOME/aboard`. They name"
    " programs that run, and files that are written, with your rights: nobody else may write there.",
    fixes="ls -ld {folder}; unset XDG_STATE_HOME XDG_CACHE_HOME    # or set them to directories of your own",
)

RUN_TAKEN = Mistake(code="run-taken", fixes="aboard status {run}")

RUN_OVER = Mistake(code="run-over", fixes="aboard logs {run}    # or: aboard why {run}")

RUN_SCRIPT = Mistake(code="run-script", fixes="aboard logs {run} --script --follow    # or: aboard stop {run}")

RUN_SILENT = Diagnosis(
    code="run-silent",
    title="the run's conductor does not respond",
    symptoms=("did not respond within",),
    explanation="The conductor process exists but is busy or stopped. The head may be swapping, or the conductor may"
    " have received SIGSTOP.",
    fixes="aboard logs {run}    # then check the head: free -g, and top for a process in state T or D",
)

BUNDLE_ASK = Mistake(code="bundle-ask", fixes="aboard bundle {run} --yes")

BUNDLE_THERE = Mistake(code="bundle-there", fixes="rm {path}    # or choose a different name with -o")

BUNDLE_WRITE = Diagnosis(
    code="bundle-write",
    title="the bundle can't be written",
    symptoms=("can't be written: No space left on device",),
    explanation="The directory may belong to another user, or its disk may be full.",
    fixes="aboard bundle {run} -o /a/disk/with/room/{name}",
)

BUNDLE_NONE = Mistake(code="bundle-none", fixes="aboard bundle RUN    # creates a bundle")

BUNDLE_BROKEN = Mistake(code="bundle-broken", fixes="aboard bundle RUN    # creates a bundle")

REPORT_RUNS = Mistake(
    code="report-runs",
    fixes={
        "compare": "aboard report --compare {runs:words}",
        "fewer": "aboard report --compare RUN RUN    # at most 8",
    },
)

REPORT_THERE = Mistake(code="report-there", fixes="aboard report {run} -o {name}    # or any other name")

REPORT_WRITE = Diagnosis(
    code="report-write",
    title="the report can't be written",
    symptoms=("can't be written: Permission denied",),
    explanation="The directory may belong to another user, or its disk may be full.",
    fixes="aboard report {run} -o /a/disk/with/room/{name}",
)
