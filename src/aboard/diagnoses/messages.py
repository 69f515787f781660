"""Messages that programs print, and what each says about the failure that it belongs to."""

import re
from dataclasses import KW_ONLY
from enum import Enum, Flag, auto
from functools import cached_property, partial

from aboard.lazy_dataclass import dataclass

# What patterns of several diagnoses share: the far end as NCCL prints it, a work request of its that ended with a
# status (`with error 12` up to 2.18, `status=12` from 2.20, `status=IBV_WC_RETRY_EXC_ERR(12)` from 2.29), and how the
# driver begins a GPU's error.
NCCL_PEER = r"(?P<peer>[\w.:-]+?)(?:\.ibnet)?<(?P<port>\d+)>"
NCCL_COMPLETION = rf"Got completion from peer {NCCL_PEER}.*?(?:with error |status=)(?:\w+\()?"
KERNEL_XID = r"NVRM: Xid \((?:PCI:)?(?P<pci>[\w:.]+)\): "


class MessageRole(Enum):
    """What a message is to a failure.

    CAUSE is where it began. WAIT is a time-out: it names who waited, and anything that failed before explains it. END
    says that a process ended, not why. ECHO is a rank that lost a peer. HINT is harmless alone, and separates the
    causes that another message can have. ODD is worth a warning although the run goes on, INFO is worth a line.
    """

    CAUSE = "cause"
    WAIT = "wait"
    END = "end"
    ECHO = "echo"
    HINT = "hint"
    ODD = "odd"
    INFO = "info"


class MessageSource(Flag):
    """What a pattern is matched against: a line of a log, the text with which a rank died, or both."""

    LOG = auto()
    DEATH = auto()


@dataclass(frozen=True)
class Message:
    """A pattern of a diagnosis. Groups that have a meaning: node, rank, local, pid, peer (an address or a name), at.

    `why` defaults to the explanation of the diagnosis; both may hold any group of the pattern in braces, and {node} and
    {rank} of whoever printed it. `fix` names the variant of the diagnosis's fixes: by default "log", or its only one.
    The first pattern that fits a text speaks for it: a smaller `order` is tried first, then a larger `weight`. `weight`
    also decides between causes that were seen together: 3 names the thing itself, 2 what failed, 1 only that something
    did. `late` is printed by an observer, after the fact. `refines` lists the codes whose causes a hint separates.
    """

    pattern: str
    why: str = ""
    _: KW_ONLY
    fix: str = ""
    role: MessageRole = MessageRole.CAUSE
    source: MessageSource = MessageSource.LOG
    weight: int = 3
    order: int = 0
    late: bool = False
    refines: tuple[str, ...] = ()

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The pattern, compiled at its first use."""
        return re.compile(self.pattern)


# Where a failure began.
cause = partial(Message, role=MessageRole.CAUSE)
# A time-out, which anything that failed before explains.
wait = partial(Message, role=MessageRole.WAIT, weight=2)
# A process ended; printed by its launcher, after the fact.
end = partial(Message, role=MessageRole.END, weight=1, late=True)
# A rank complains because a peer is gone.
echo = partial(Message, role=MessageRole.ECHO, weight=0)
# Harmless alone; separates the causes that messages of other codes can have.
hint = partial(Message, role=MessageRole.HINT)
# The run goes on, slower or otherwise than intended.
odd = partial(Message, role=MessageRole.ODD, weight=1)
# Worth a line, since it is mostly intended.
info = partial(Message, role=MessageRole.INFO, weight=1)
# What a rank said when it died of this failure.
last_words = partial(Message, source=MessageSource.DEATH)
