"""Runs and bundles that can't be found, made or read."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice, FixCommand
from aboard.diagnoses.shared_fixes import SUGGESTED

RUN_NONE = Diagnosis(
    code="run-none",
    title="there is no run yet",
    symptoms=("there is no run yet under",),
    explanation="Runs are recorded on the machine and for the user that started them, below `XDG_STATE_HOME`.",
    fixes={
        "launch": FixCommand("aboard launch -- train.py    # makes one"),
        "others": FixCommand(
            "aboard launch -- train.py    # makes a first one\n"
            "aboard why --nodes NODES    # a training that another launcher started; --log FILE: its output\n"
            "aboard why --codes    # lists all codes"
        ),
    },
)

RUN_NAME = Diagnosis(
    code="run-name",
    title="there is no run of that name",
    symptoms=("fits 2 runs",),
    explanation="A run is named by its whole name, or by a part that no other has; `aboard status` lists all.",
    fixes={
        "longer": Advice("type more of its name"),
        "first": FixCommand("aboard launch -- train.py    # makes a first one"),
        **SUGGESTED,
    },
)

RUN_DIRECTORY = Diagnosis(
    code="run-directory",
    title="no run directory can be made",
    symptoms=("no run directory can be made under",),
    explanation="What a run sees is kept below `~/.local/state/aboard`, which can't be written.",
    fixes={
        "wait": Advice("wait a minute, and type it again"),
        "elsewhere": FixCommand("XDG_STATE_HOME=/a/disk/with/room aboard launch …"),
        "look": FixCommand("ls -ld {folder}"),
    },
)

RUN_TAKEN = Diagnosis(
    code="run-taken",
    title="the run has a conductor already",
    symptoms=("has a conductor already",),
    explanation="One process on the head leads a run.",
    fixes="aboard status {run}",
)

RUN_OVER = Diagnosis(
    code="run-over",
    title="the run is over",
    symptoms=("no conductor of RUN answers",),
    explanation="What was asked for is only there while it runs.",
    fixes="aboard logs {run}    # or: aboard why {run}",
)

RUN_SILENT = Diagnosis(
    code="run-silent",
    title="the run's conductor doesn't answer",
    symptoms=("did not answer within",),
    explanation="Its process is there and busy, or stopped: a head that swaps, or one on which it got SIGSTOP.",
    fixes="aboard logs {run}    # then look at the head: free -g, and top for a process in state T or D",
)

BUNDLE_ASK = Diagnosis(
    code="bundle-ask",
    title="nobody is there to be asked",
    symptoms=("nobody is there to be asked whether to write it",),
    explanation="A bundle shows what is in it before it is written, and asks.",
    fixes="aboard bundle {run} --yes",
)

BUNDLE_THERE = Diagnosis(
    code="bundle-there",
    title="there is a bundle of that name already",
    symptoms=("is there already",),
    explanation="It is never overwritten.",
    fixes="rm {path}    # or another name: -o",
)

BUNDLE_WRITE = Diagnosis(
    code="bundle-write",
    title="the bundle can't be written",
    symptoms=("can't be written: No space left on device",),
    explanation="The directory is not yours, or its disk is full.",
    fixes="aboard bundle {run} -o /a/disk/with/room/{name}",
)

BUNDLE_NONE = Diagnosis(
    code="bundle-none",
    title="there is no such bundle",
    symptoms=("there is no",),
    explanation="The file that is named isn't there.",
    fixes="aboard bundle RUN    # makes one",
)

BUNDLE_BROKEN = Diagnosis(
    code="bundle-broken",
    title="the bundle can't be read",
    symptoms=("is no bundle that can be read",),
    explanation="It broke off while it was copied, or is something else: compare its size with the original's.",
    fixes="aboard bundle RUN    # makes one",
)
