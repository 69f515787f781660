"""Diagnoses of runs and bundles that can't be found, created or read."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice
from aboard.diagnoses.shared_fixes import SUGGESTED

RUN_NONE = Diagnosis(
    code="run-none",
    title="there is no run yet",
    symptoms=("there is no run yet under",),
    explanation="Aboard records runs below `XDG_STATE_HOME`, separately for each user and only on the machine that"
    " started them.",
    fixes={
        "launch": "aboard launch -- train.py    # creates a run",
        "others": "aboard launch -- train.py    # creates the first run\n"
        "aboard why --nodes NODES    # for a different launcher's job; or --log FILE, for its output\n"
        "aboard why --codes    # lists all codes",
    },
)

RUN_NAME = Diagnosis(
    code="run-name",
    title="no run has that name",
    symptoms=("matches 2 runs",),
    explanation="Pass a run's full name, or a part of it that is unique. `aboard status` lists all runs.",
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

RUN_TAKEN = Diagnosis(
    code="run-taken",
    title="the run already has a conductor",
    symptoms=("already has a conductor",),
    explanation="The conductor is the process on the head that controls the run. Each run has exactly one.",
    fixes="aboard status {run}",
)

RUN_OVER = Diagnosis(
    code="run-over",
    title="the run has ended",
    symptoms=("the conductor of RUN does not respond, so the run is over",),
    explanation="This command only works while the run is active.",
    fixes="aboard logs {run}    # or: aboard why {run}",
)

RUN_SCRIPT = Diagnosis(
    code="run-script",
    title="the run's script has called no launcher yet",
    symptoms=("has no ranks yet: its script has called no launcher yet",),
    explanation="The run began with a script, such as `aboard launch -- bash run.sh`. Its ranks start when it calls"
    " torchrun, deepspeed or accelerate launch.",
    fixes="aboard logs {run} --script --follow    # or: aboard stop {run}",
)

RUN_SILENT = Diagnosis(
    code="run-silent",
    title="the run's conductor does not respond",
    symptoms=("did not respond within",),
    explanation="The conductor process exists but is busy or stopped. The head may be swapping, or the conductor may"
    " have received SIGSTOP.",
    fixes="aboard logs {run}    # then check the head: free -g, and top for a process in state T or D",
)

BUNDLE_ASK = Diagnosis(
    code="bundle-ask",
    title="there is no terminal to ask for confirmation",
    symptoms=("cannot ask for confirmation: stdin is not a terminal",),
    explanation="`aboard bundle` shows the bundle's contents, and asks for confirmation before it writes them.",
    fixes="aboard bundle {run} --yes",
)

BUNDLE_THERE = Diagnosis(
    code="bundle-there",
    title="a bundle with that name already exists",
    symptoms=("already exists",),
    explanation="Aboard never overwrites an existing bundle.",
    fixes="rm {path}    # or choose a different name with -o",
)

BUNDLE_WRITE = Diagnosis(
    code="bundle-write",
    title="the bundle can't be written",
    symptoms=("can't be written: No space left on device",),
    explanation="The directory may belong to another user, or its disk may be full.",
    fixes="aboard bundle {run} -o /a/disk/with/room/{name}",
)

BUNDLE_NONE = Diagnosis(
    code="bundle-none",
    title="the bundle does not exist",
    symptoms=("there is no",),
    explanation="The path may be wrong, or the bundle may have been written on a different machine.",
    fixes="aboard bundle RUN    # creates a bundle",
)

BUNDLE_BROKEN = Diagnosis(
    code="bundle-broken",
    title="the bundle can't be read",
    symptoms=("is not a readable bundle",),
    explanation="The file is incomplete or is not a bundle. Compare its size with the original's.",
    fixes="aboard bundle RUN    # creates a bundle",
)

REPORT_RUNS = Diagnosis(
    code="report-runs",
    title="a report is about one run, or compares up to 8",
    symptoms=("more than one run was given", "runs were given"),
    explanation="`aboard report RUN` shows one run; `--compare` shows several runs on the same axes.",
    fixes={
        "compare": "aboard report --compare {runs:words}",
        "fewer": "aboard report --compare RUN RUN    # at most 8",
    },
)

REPORT_THERE = Diagnosis(
    code="report-there",
    title="a file with that name exists and is no report",
    symptoms=("exists and was not written by `aboard report`",),
    explanation="Aboard replaces an older report, and never another file.",
    fixes="aboard report {run} -o {name}    # or any other name",
)

REPORT_WRITE = Diagnosis(
    code="report-write",
    title="the report can't be written",
    symptoms=("can't be written: Permission denied",),
    explanation="The directory may belong to another user, or its disk may be full.",
    fixes="aboard report {run} -o /a/disk/with/room/{name}",
)
