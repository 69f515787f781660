"""What Slurm reports about a job and its nodes, for the preflight check."""

import re
from collections.abc import Mapping
from dataclasses import field
from datetime import datetime

from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy_dataclass import dataclass

_NODE = re.compile(
    r"^NodeName=(?P<name>\S+) .*? State=(?P<state>[\w+*~#$@^!%-]+)(?: .*? Reason=(?P<reason>.*))?", re.MULTILINE
)
_TIME = re.compile(r"(?:^|\s)(?P<key>StartTime|EndTime)=(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?=\s|$)")
_PORTS = re.compile(r"^\s*SrunPortRange\s*=\s*(\d{1,5})-(\d{1,5})\s*(?:#.*)?$", re.MULTILINE | re.IGNORECASE)
_MUNGE = re.compile(r"^(STATUS|ENCODE_TIME|DECODE_TIME):[ \t]+([^\s(][^\n(]*?) \((\d{1,12})\)$", re.MULTILINE)
_DOWN = frozenset({"DOWN", "NOT_RESPONDING", "FAIL", "POWERED_DOWN", "POWERING_DOWN"})


@dataclass(frozen=True, kw_only=True)
class SlurmNodeState:
    """A node as `scontrol show node` reports it: `states` are Slurm's words, such as MIXED and DRAIN."""

    states: frozenset[str]
    reason: Untrusted = NO_TEXT

    @property
    def is_down(self) -> bool:
        return bool(self.states & _DOWN)

    @property
    def is_drained(self) -> bool:
        return "DRAIN" in self.states


@dataclass(frozen=True, kw_only=True)
class MungeReply:
    """What munge on a node says of a credential from here, and how far the node's clock is ahead, in seconds."""

    status: Untrusted
    ahead: float

    @property
    def shows_wrong_clock(self) -> bool:
        return self.status.startswith(("Expired", "Rewound"))


@dataclass(frozen=True, kw_only=True)
class SlurmFacts:
    """A job, its nodes by name, and the ports of srun; None for a job without a time limit and for any free port.

    `munge` has the replies of nodes whose slurmd is silent or refuses steps. `problem` says why Slurm did not report
    anything.
    """

    job: int
    is_suspended: bool = False
    seconds_left: float | None = None
    limit_seconds: float | None = None
    nodes: Mapping[str, SlurmNodeState] = field(default_factory=dict)
    srun_ports: tuple[int, int] | None = None
    munge: Mapping[str, MungeReply] = field(default_factory=dict)
    problem: str = ""


def parse_node_states(text: str) -> dict[str, SlurmNodeState]:
    """The nodes in the output of `scontrol show node -o`."""
    found = {}
    for match in _NODE.finditer(text):
        state = match["state"]
        # A star after the state: the node does not respond. Newer versions say so in a word.
        words = {*re.findall(r"[A-Z_]+", state), *(("NOT_RESPONDING",) if "*" in state else ())}
        found[match["name"]] = SlurmNodeState(
            states=frozenset(words), reason=Untrusted((match["reason"] or "").strip())
        )
    return found


def parse_job_times(text: str, now: datetime) -> tuple[float | None, float | None]:
    """The seconds that are left and that the job has in all, from `scontrol show job -o`; None without a limit."""
    times = {match["key"]: datetime.fromisoformat(match["at"]) for match in _TIME.finditer(text)}
    start, end = times.get("StartTime"), times.get("EndTime")
    if start is None or end is None:
        return None, None
    # Slurm prints local times without a zone.
    return (end - now.replace(tzinfo=None)).total_seconds(), (end - start).total_seconds()


def parse_unmunge(text: str) -> MungeReply | None:
    """The output of `unmunge`; None if it says nothing of a credential."""
    found = {key: (words, int(number)) for key, words, number in _MUNGE.findall(text)}
    if len(found) < 3:  # noqa: PLR2004 - the status and both times
        return None
    ahead = found["DECODE_TIME"][1] - found["ENCODE_TIME"][1]
    return MungeReply(status=Untrusted(found["STATUS"][0]), ahead=float(ahead))


def parse_srun_ports(text: str) -> tuple[int, int] | None:
    """The range in slurm.conf or in the output of `scontrol show config`; None if srun takes any free port."""
    found = _PORTS.search(text)
    ports = (int(found[1]), int(found[2])) if found else (0, 0)
    return ports if ports[1] else None


def count_srun_ports(nodes: int, *, nodes_per_step: int = 64) -> int:
    """The ports that steps on this many nodes need, twice since a new step starts before the old one ended.

    A step takes two ports, and one each for messages and output for every 48 nodes. 16 lone
    reconnections come on top.
    """
    steps = [nodes_per_step] * (nodes // nodes_per_step) + [nodes % nodes_per_step]
    return 2 * sum(2 + 2 * -(-size // 48) for size in steps if size) + 16 * 4
