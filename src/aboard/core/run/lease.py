"""A lease: how long a supervisor keeps its ranks alive without contact to the head."""

from aboard.lazy_dataclass import dataclass

ATTACHED_SECONDS = 20.0
DETACHED_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Lease:
    """After `seconds` of silence ranks are stopped; the head sends every `beat`; `grace` is between TERM and KILL.

    `farewell` replaces `grace` when the user stops the run: trainers save then, which they can't after losing a peer.
    """

    seconds: float = ATTACHED_SECONDS
    beat: float = 2.0
    grace: float = 5.0
    farewell: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.beat <= self.seconds / 2:
            raise ValueError(f"a beat of {self.beat} s is too long for a lease of {self.seconds} s")
        if self.grace < 0:
            raise ValueError(f"a grace of {self.grace} s")
