"""A launcher's flags as a table: how each is spelled, what it takes, and what becomes of it."""

from enum import Enum

from aboard.diagnoses import NO_FIX, Fix, paste
from aboard.lazy import dataclass

Value = str | int | float | bool | None


class Takes(Enum):
    """What stands behind a flag."""

    NOTHING = "nothing"
    TEXT = "text"
    NUMBER = "a whole number"
    DECIMAL = "a number"


class Fate(Enum):
    """What becomes of a flag: it is obeyed, Aboard does it anyway, or it can't be obeyed and is refused."""

    OBEYED = "obeyed"
    OURS = "ours"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class Flag:
    """`says` is the note of a flag that is ours and the reason for one that is refused; `fine` values need neither."""

    names: tuple[str, ...]
    takes: Takes
    fate: Fate
    says: str = ""
    fix: Fix = NO_FIX
    fine: frozenset[str] = frozenset()
    default: Value = None

    @property
    def dest(self) -> str:
        """The first name without its dashes: `--nproc-per-node` is `nproc_per_node`."""
        return self.names[0].lstrip("-").replace("-", "_")


def obeyed(*names: str, takes: Takes = Takes.TEXT, default: Value = None) -> Flag:
    return Flag(names=names, takes=takes, fate=Fate.OBEYED, default=default)


def switch(*names: str) -> Flag:
    return Flag(names=names, takes=Takes.NOTHING, fate=Fate.OBEYED, default=False)


def ours(*names: str, says: str, takes: Takes = Takes.TEXT, fine: tuple[str, ...] = ()) -> Flag:
    return Flag(names=names, takes=takes, fate=Fate.OURS, says=says, fine=frozenset(fine))


def refused(
    *names: str, says: str, fix: Fix | None = None, takes: Takes = Takes.TEXT, fine: tuple[str, ...] = ()
) -> Flag:
    """One that can't be obeyed; without another fix, it is to be left out."""
    fix = paste.FLAG.fix("leave-out", flag=names[0]) if fix is None else fix
    return Flag(names=names, takes=takes, fate=Fate.REFUSED, says=says, fix=fix, fine=frozenset(fine))


def help_of(launcher: str) -> Flag:
    """Every launcher has it, and no run can come of it."""
    return refused(
        "--help",
        "-h",
        takes=Takes.NOTHING,
        says="asks for help, which starts nothing",
        fix=paste.FLAG.fix("help", launcher=launcher),
    )
