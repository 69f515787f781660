"""What the failure of a run belongs to: the class by which `core.run.recovery` decides what is done about it."""

from enum import Enum, StrEnum, auto
from typing import TypeAlias

from aboard.diagnoses.fixes import FixCommand, FixTemplate, FixTemplates
from aboard.lazy_dataclass import dataclass


class FailureClass(StrEnum):
    """What a failure belongs to, which decides what is done about it."""

    TRANSIENT = "transient"
    NODE = "node"
    PROGRAM = "program"
    OUTSIDE = "outside"
    UNKNOWN = "unknown"


class Circumstance(Enum):
    """What the class depends on, if the diagnosis alone doesn't say it; see `decide_class`."""

    BY_EXTENT = auto()
    BY_DISK = auto()
    BY_MEMORY = auto()


RestartClass: TypeAlias = FailureClass | Circumstance


@dataclass(frozen=True)
class RunFix:
    """A fix of a failure whose variants belong to several classes."""

    restart: RestartClass
    fix: str | FixTemplate

    @property
    def template(self) -> FixTemplate:
        return FixCommand(self.fix) if isinstance(self.fix, str) else self.fix


def classify_fixes(restart: RestartClass, fixes: FixTemplates) -> dict[str, RunFix]:
    """Fixes of one class, for a failure that has others as well."""
    return {variant: RunFix(restart, fix) for variant, fix in fixes.items()}


def decide_class(restart: RestartClass, *, everywhere: bool, shared_disk: bool, own_memory: bool) -> FailureClass:
    """The class under these circumstances.

    `everywhere`: all of several nodes have it. `shared_disk`: nodes share the disk that it is about. `own_memory`: the
    ranks themselves used most of the memory that ran out.
    """
    match restart:
        case FailureClass():
            return restart
        case Circumstance.BY_EXTENT:
            return FailureClass.PROGRAM if everywhere else FailureClass.NODE
        case Circumstance.BY_DISK:
            # On a disk that nodes share, it has to clear for all of them.
            return FailureClass.OUTSIDE if shared_disk or everywhere else FailureClass.NODE
        case Circumstance.BY_MEMORY:
            return FailureClass.PROGRAM if own_memory or everywhere else FailureClass.NODE
