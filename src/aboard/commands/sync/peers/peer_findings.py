"""What nodes reported about their peers, as findings."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses.diagnosis import Finding
from aboard.diagnoses.files import file_sync
from aboard.lazy_dataclass import dataclass
from aboard.transport.files.peer_control import PeerStatus

_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class PeerReport:
    """The bytes that each node fetched from peers, what the head sent, and warnings about nodes."""

    fetched: Mapping[str, int] = field(default_factory=dict)
    sent: int = 0
    findings: tuple[Finding, ...] = ()


@dataclass(kw_only=True)
class PeerObservations:
    """What the nodes' reports say, by number; a pair that was connected once counts as connected."""

    linked: set[frozenset[int]] = field(default_factory=set)
    unlinked: set[frozenset[int]] = field(default_factory=set)
    wrong: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    silent: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    absent: dict[int, str] = field(default_factory=dict)

    def note(self, number: int, expected: Iterable[int], status: PeerStatus) -> None:
        self.linked |= {frozenset((number, peer)) for peer in status.links}
        self.unlinked |= {frozenset((number, peer)) for peer in status.unreached & frozenset(expected)}
        for peer in status.wrong:
            self.wrong[peer].add(number)
        for peer in status.silent:
            self.silent[peer].add(number)


def build_peer_report(
    observations: PeerObservations,
    names: Mapping[int, str],
    *,
    fetched: Mapping[int, int],
    sent: int,
    ports: Mapping[int, tuple[int, ...]],
) -> PeerReport:
    findings = []
    for diagnosis, found, did in (
        (file_sync.PEER_WRONG_BYTES, observations.wrong, "sent a piece that differs from its hash to"),
        (file_sync.PEER_SILENT, observations.silent, "was asked for a piece and sent nothing to"),
    ):
        for peer in sorted(found.keys() & names.keys()):
            text = f"{names[peer]} {did} {_join_names(found[peer], names)}"
            fix = diagnosis.fix(node=names[peer])
            findings.append(diagnosis.finding(nodes=(names[peer],), seen=text, fix=fix))
    blocked = {pair for pair in observations.unlinked - observations.linked if pair <= names.keys()}
    for number, others in group_pairs(blocked):
        tried = " or ".join(map(str, sorted({port for other in (number, *others) for port in ports.get(other, ())})))
        nodes = (number,) if len(others) > 1 else (number, *others)
        findings.append(
            file_sync.PEER_BLOCKED.finding(
                nodes=tuple(names[each] for each in nodes),
                seen=f"{names[number]} has no connection to {_join_names(others, names)} on port {tried}; the head sent"
                f" {format_size(sent)} itself",
                fix=file_sync.PEER_BLOCKED.fix(nodes=_join_names(nodes, names)),
            )
        )
    for number, why in sorted(observations.absent.items()):
        findings.append(
            file_sync.PEER_BLOCKED.finding(
                nodes=(names[number],),
                seen=f"{names[number]} took no part in passing files on: {why}",
                fix=file_sync.PEER_BLOCKED.fix(nodes=names[number]),
            )
        )
    return PeerReport(
        fetched={names[number]: count for number, count in fetched.items()}, sent=sent, findings=tuple(findings)
    )


def group_pairs(pairs: Iterable[frozenset[int]]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The pairs as few nodes, each with its peers: a node that misses many peers is the likely cause."""
    left = {tuple(sorted(pair)) for pair in pairs}
    while left:
        counts = Counter(number for pair in sorted(left) for number in pair)
        most = counts.most_common(1)[0][0]
        own = {pair for pair in left if most in pair}
        left -= own
        yield most, tuple(sorted(number for pair in own for number in pair if number != most))


def _join_names(numbers: Iterable[int], names: Mapping[int, str]) -> str:
    known = [names[number] for number in sorted(numbers) if number in names]
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return ", ".join(known[:_SHOWN]) + more
