"""The phases of a rank, in order."""

from enum import IntEnum


class Phase(IntEnum):
    """As the supervisor and the beacon report them; a later phase implies the earlier ones."""

    WAITING = 0
    STARTED = 1
    PYTHON = 2
    TORCH = 3
    STORE = 4
    GROUP = 5
    COLLECTIVE = 6
    STEPS = 7
    DONE = 8

    @property
    def label(self) -> str:
        return _LABELS[self]


_LABELS = {
    Phase.WAITING: "waiting",
    Phase.STARTED: "started",
    Phase.PYTHON: "Python started",
    Phase.TORCH: "torch imported",
    Phase.STORE: "store connected",
    Phase.GROUP: "process group ready",
    Phase.COLLECTIVE: "first collective done",
    Phase.STEPS: "training",
    Phase.DONE: "finished",
}

# The beacon's names of phases.
BEACON_PHASES = {
    "started": Phase.PYTHON,
    "torch": Phase.TORCH,
    "store": Phase.STORE,
    "group": Phase.GROUP,
    "collective": Phase.COLLECTIVE,
}
