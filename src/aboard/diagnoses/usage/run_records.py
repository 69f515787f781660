"""Diagnoses of runs and bundles that can't be found, created or read."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice, FixCommand
from aboard.diagnoses.shared_fixes import SUGGESTED

RUN_NONE = Diagnosis(
    code="run-none",
    title="there is no run yet",
    symptoms=("there is no run yet under",),
    explanation="Runs are recorded below `XDG_STATE_HOME`, for the user and on the machine that started them.",
    fixes={
        "launch": FixCommand("aboard launch -- train.py    # creates one"),
        "others": FixCommand(
            "aboard launch -- train.py    # creates the first one\n"
            "aboard why --nodes NODES    # a job of another launcher; --log FILE: its output\n"
            "aboard why --codes    # lists all codes"
        ),
    },
)

RUN_NAME = Diagnosis(
    code="run-name",
    title="no run has that name",
    symptoms=("fits 2 runs",),
    explanation="A run is named by its full name, or by a part that is unique. `aboard status` lists all runs.",
    fixes={
        "longer": Advice("type more of its name"),
        "first": FixCommand("aboard launch -- train.py    # creates the first one"),
        **SUGGESTED,
    },
)

RUN_DIRECTORY = Diagnosis(
    code="run-directory",
    title="the run directory can't be created",
    symptoms=("no run directory can be created under",),
    explanation="Runs are recorded below `~/.local/state/aboard`, which is not writable.",
    fixes={
        "wait": Advice("wait a minute, and run it again"),
        "elsewhere": FixCommand("XDG_STATE_HOME=/a/disk/with/room aboard launch …"),
        "look": FixCommand("ls -ld {folder}"),
    },
)

RUN_TAKEN = Diagnosis(
    code="run-taken",
    title="the run already has a conductor",
    symptoms=("already has a conductor",),
    explanation="Each run has one conductor process, on the head.",
    fixes="aboard status {run}",
)

RUN_OVER = Diagnosis(
    code="run-over",
    title="the run has ended",
    symptoms=("no conductor of RUN answers",),
    explanation="This command only works while the run is active.",
    fixes="aboard logs {run}    # or: aboard why {run}",
)

RUN_SILENT = Diagnosis(
    code="run-silent",
    title="the run's conductor does not respond",
    symptoms=("did not respond within",),
    explanation="The process exists but is busy or stopped: the head is swapping, or the conductor got SIGSTOP.",
    fixes="aboard logs {run}    # then check the head: free -g, and top for a process in state T or D",
)

BUNDLE_ASK = Diagnosis(
    code="bundle-ask",
    title="there is no terminal to ask for confirmation",
    symptoms=("cannot ask for confirmation: stdin is not a terminal",),
    explanation="`aboard bundle` shows the contents and asks before it writes them.",
    fixes="aboard bundle {run} --yes",
)

BUNDLE_THERE = Diagnosis(
    code="bundle-there",
    title="a bundle of that name already exists",
    symptoms=("is there already",),
    explanation="Aboard never overwrites it.",
    fixes="rm {path}    # or another name: -o",
)

BUNDLE_WRITE = Diagnosis(
    code="bundle-write",
    title="the bundle can't be written",
    symptoms=("can't be written: No space left on device",),
    explanation="The directory belongs to another user, or its disk is full.",
    fixes="aboard bundle {run} -o /a/disk/with/room/{name}",
)

BUNDLE_NONE = Diagnosis(
    code="bundle-none",
    title="the bundle does not exist",
    symptoms=("there is no",),
    explanation="There is no file at this path.",
    fixes="aboard bundle RUN    # creates one",
)

BUNDLE_BROKEN = Diagnosis(
    code="bundle-broken",
    title="the bundle can't be read",
    symptoms=("is no bundle that can be read",),
    explanation="The file is incomplete or is not a bundle: compare its size with the original's.",
    fixes="aboard bundle RUN    # creates one",
)
