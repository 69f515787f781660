"""The table of a launcher's flags: the spellings, value and handling of each."""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

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
    # Only as --flag=value.
    OPTIONAL = "an optional value"


class FlagHandling(Enum):
    """What happens to a flag: it is obeyed, Aboard does it anyway, or it is refused as unsupported."""

    OBEYED = "obeyed"
    OURS = "ours"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class LauncherFlag:
    """`note` is the note for a flag that Aboard covers, or the reason to refuse it; `accepted` values need neither."""

    names: tuple[str, ...]
    takes: FlagValueKind
    handling: FlagHandling
    note: str = ""
    fix: Fix = NO_FIX
    accepted: frozenset[str] = frozenset()
    default: Value = None

    @property
    def dest(self) -> str:
        """The first name without its dashes: `--nproc-per-node` is `nproc_per_node`."""
        return self.names[0].lstrip("-").replace("-", "_")


def obey_flag(*names: str, takes: FlagValueKind = FlagValueKind.TEXT, default: Value = None) -> LauncherFlag:
    return LauncherFlag(names=names, takes=takes, handling=FlagHandling.OBEYED, default=default)


def obey_switch(*names: str) -> LauncherFlag:
    return LauncherFlag(names=names, takes=FlagValueKind.NOTHING, handling=FlagHandling.OBEYED, default=False)


def skip_flag(
    *names: str, note: str, takes: FlagValueKind = FlagValueKind.TEXT, accepted: tuple[str, ...] = ()
) -> LauncherFlag:
    return LauncherFlag(names=names, takes=takes, handling=FlagHandling.OURS, note=note, accepted=frozenset(accepted))


def refuse_flag(
    *names: str,
    note: str,
    fix: Fix | None = None,
    takes: FlagValueKind = FlagValueKind.TEXT,
    accepted: tuple[str, ...] = (),
) -> LauncherFlag:
    """An unsupported flag; the default fix is to remove it."""
    fix = pasted_commands.FLAG.fix("leave-out", flag=names[0]) if fix is None else fix
    return LauncherFlag(
        names=names, takes=takes, handling=FlagHandling.REFUSED, note=note, fix=fix, accepted=frozenset(accepted)
    )


def list_flags(make: Callable[..., LauncherFlag], names: str, **settings: Any) -> Iterator[LauncherFlag]:
    """A flag for each word, all made alike; a word such as `--home|-H` has all names of its flag."""
    return (make(*word.split("|"), **settings) for word in names.split())


def refuse_help(launcher: str) -> LauncherFlag:
    """The help flag of every launcher, which can't lead to a run."""
    return refuse_flag(
        "--help",
        "-h",
        takes=FlagValueKind.NOTHING,
        note="prints help and starts nothing",
        fix=pasted_commands.FLAG.fix("help", launcher=launcher),
    )
