"""Patterns of messages that programs print, and the role of each in a failure."""

import re
from dataclasses import KW_ONLY
from enum import Enum, Flag, auto
from functools import cached_property, partial

from aboard.lazy_dataclass import dataclass

# The precedence of a diagnosis that declares none. Of the patterns that match a text, the one with the smallest number
# decides, then the larger weight, then the code. Choose a number between the two diagnoses that it must come between:
# 200 to 299: container runtimes; their wording contains that of other refusals ("No space left on device")
# 300 to 399: the wording of one program: a container's image, then its runtime, then warnings; NCCL's watchdog
# 400 to 499: messages that quote another rank's, or that name the cause of a general message
# 500: most messages
# 600 to 699: general messages, which also match lines that another diagnosis explains better
USUAL_PRECEDENCE = 500

# Patterns that several diagnoses share: a peer as NCCL prints it, NCCL's work request that completed with a status
# (`with error 12` up to 2.18, without the peer in older versions and in plugins; `status=12` from 2.20;
# `status=IBV_WC_RETRY_EXC_ERR(12)` from 2.29), and the start of the driver's message for a GPU error.
NCCL_PEER = r"(?P<peer>[\w.:%-]+?)(?:\.ibnet)?<(?P<port>\d+)>"
NCCL_COMPLETION = rf"Got completion (?:from peer {NCCL_PEER}.*?)?(?:with error |status=)(?:\w+\()?"
KERNEL_XID = r"NVRM: Xid \((?:PCI:)?(?P<pci>[\w:.]+)\): "


class PatternRole(Enum):
    """The role of a message in a failure.

    CAUSE is where it began. WAIT is a timeout: it names who waited, and any earlier failure explains it. END reports
    that a process ended, but not why. ECHO comes from a rank that lost a peer. HINT is harmless alone, and
    distinguishes the causes that another message can have. ODD is a warning while the run continues, INFO a remark.
    """

    CAUSE = "cause"
    WAIT = "wait"
    END = "end"
    ECHO = "echo"
    HINT = "hint"
    ODD = "odd"
    INFO = "info"


class PatternSource(Flag):
    """What a pattern is matched against: a log line, the last output of a dead rank, or both."""

    LOG = auto()
    DEATH = auto()


# A character, an escaped one or a set, and whether it is repeated; and how often it may be.
_PART = re.compile(r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.)([*+]?)", re.DOTALL)
_BOUNDS = {"*": "{0,500}", "+": "{1,500}"}


@dataclass(frozen=True)
class OutputPattern:
    """A pattern of a diagnosis. Groups with a meaning: node, rank, local, pid, peer (an address or a name), at.

    `why` defaults to the explanation of the diagnosis; both may contain any group of the pattern in braces, and {node}
    and {rank} of the process that printed it. `fix` names the variant of the fix: by default "log", or the only one.
    `precedence` replaces the one of the diagnosis. `weight` ranks causes that occur together: 3 names the root cause, 2
    what failed, 1 only that something failed. `late` means printed by an observer, after the fact. `refines` lists the
    codes whose causes a hint distinguishes.
    """

    pattern: str
    why: str = ""
    _: KW_ONLY
    fix: str = ""
    role: PatternRole = PatternRole.CAUSE
    source: PatternSource = PatternSource.LOG
    weight: int = 3
    precedence: int | None = None
    late: bool = False
    refines: tuple[str, ...] = ()

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The pattern, compiled on first use."""
        # A line that repeats the beginning of a message would otherwise take the square of its length in time.
        return re.compile(_PART.sub(lambda part: part[1] + _BOUNDS.get(part[2], ""), self.pattern))


# Where a failure began.
cause = partial(OutputPattern, role=PatternRole.CAUSE)
# A timeout, which any earlier failure explains.
wait = partial(OutputPattern, role=PatternRole.WAIT, weight=2)
# A process ended; printed by its launcher, after the fact.
end = partial(OutputPattern, role=PatternRole.END, weight=1, late=True)
# A rank reports that it lost a peer.
echo = partial(OutputPattern, role=PatternRole.ECHO, weight=0)
# Harmless alone; distinguishes the causes that messages of other codes can have.
hint = partial(OutputPattern, role=PatternRole.HINT)
# The run continues, but slower or differently than intended.
odd = partial(OutputPattern, role=PatternRole.ODD, weight=1)
# A remark: mostly intended.
info = partial(OutputPattern, role=PatternRole.INFO, weight=1)
# The last output of a rank that died of this failure.
last_words = partial(OutputPattern, source=PatternSource.DEATH)
# A container runtime's message, in a log or as the last output of a rank.
refusal = partial(OutputPattern, source=PatternSource.LOG | PatternSource.DEATH)
