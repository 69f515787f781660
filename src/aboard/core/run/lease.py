"""A lease: how long a keeper lets its ranks live when it hears nothing from the head."""

from aboard.lazy_dataclass import dataclass

ATTACHED_SECONDS = 20.0
DETACHED_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Lease:
    """`seconds` of silence end the ranks; the head speaks every `beat`; `grace` lies between TERM and KILL.

    `farewell` takes its place where the user asked for the end: a trainer saves then, and one that lost a peer can't.
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
