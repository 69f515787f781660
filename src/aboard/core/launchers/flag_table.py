"""The table of a launcher's flags: the spellings, value and handling of each."""

from enum import Enum

from aboard.diagnoses import NO_FIX, Fix
from aboard.diagnoses.usage import pasted_commands
from aboard.lazy_dataclass import dataclass

Value = str | int | float | bool | None


class FlagValueKind(Enum):
    """The kind of value that a flag takes."""

    NOTHING = "nothing"
    TEXT = "text"
    NUMBER = "a whole number"
    DECIMAL = "a number"


class FlagHandling(Enum):
    """What happens to a flag: it is obeyed, Aboard does it anyway, or it is refused as unsupported."""

    OBEYED = "obeyed"
    OURS = "ours"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class LauncherFlag:
    """`says` is the note for a flag that Aboard covers, or the reason to refuse it; `fine` values need neither."""

    names: tuple[str, ...]
    takes: FlagValueKind
    fate: FlagHandling
    says: str = ""
    fix: Fix = NO_FIX
    fine: frozenset[str] = frozenset()
    default: Value = None

    @property
    def dest(self) -> str:
        """The first name without its dashes: `--nproc-per-node` is `nproc_per_node`."""
        return self.names[0].lstrip("-").replace("-", "_")


def obey_flag(*names: str, takes: FlagValueKind = FlagValueKind.TEXT, default: Value = None) -> LauncherFlag:
    return LauncherFlag(names=names, takes=takes, fate=FlagHandling.OBEYED, default=default)


def obey_switch(*names: str) -> LauncherFlag:
    return LauncherFlag(names=names, takes=FlagValueKind.NOTHING, fate=FlagHandling.OBEYED, default=False)


def skip_flag(
    *names: str, says: str, takes: FlagValueKind = FlagValueKind.TEXT, fine: tuple[str, ...] = ()
) -> LauncherFlag:
    return LauncherFlag(names=names, takes=takes, fate=FlagHandling.OURS, says=says, fine=frozenset(fine))


def refuse_flag(
    *names: str,
    says: str,
    fix: Fix | None = None,
    takes: FlagValueKind = FlagValueKind.TEXT,
    fine: tuple[str, ...] = (),
) -> LauncherFlag:
    """An unsupported flag; the default fix is to remove it."""
    fix = pasted_commands.FLAG.fix("leave-out", flag=names[0]) if fix is None else fix
    return LauncherFlag(names=names, takes=takes, fate=FlagHandling.REFUSED, says=says, fix=fix, fine=frozenset(fine))


def refuse_help(launcher: str) -> LauncherFlag:
    """The help flag of every launcher, which can't lead to a run."""
    return refuse_flag(
        "--help",
        "-h",
        takes=FlagValueKind.NOTHING,
        says="prints help and starts nothing",
        fix=pasted_commands.FLAG.fix("help", launcher=launcher),
    )
