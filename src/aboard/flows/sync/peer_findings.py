"""What nodes reported about their peers, as findings."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import field

from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses.diagnosis import Finding
from aboard.diagnoses.trainer import peer_transfer
from aboard.lazy_dataclass import dataclass
from aboard.transport.peer_control import PeerStatus

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
    seen: PeerObservations,
    names: Mapping[int, str],
    *,
    fetched: Mapping[int, int],
    sent: int,
    ports: Mapping[int, tuple[int, ...]],
) -> PeerReport:
    findings = []
    for peer in sorted(seen.wrong.keys() & names.keys()):
        receivers = _join_names(seen.wrong[peer], names)
        findings.append(
            peer_transfer.WRONG_BYTES.finding(
                nodes=(names[peer],),
                seen=f"{names[peer]} sent a piece that differs from its hash to {receivers}",
                fix=peer_transfer.WRONG_BYTES.fix(node=names[peer]),
            )
        )
    for peer in sorted(seen.silent.keys() & names.keys()):
        receivers = _join_names(seen.silent[peer], names)
        findings.append(
            peer_transfer.SILENT.finding(
                nodes=(names[peer],),
                seen=f"{names[peer]} was asked for a piece and sent nothing to {receivers}",
                fix=peer_transfer.SILENT.fix(node=names[peer]),
            )
        )
    blocked = sorted(sorted(pair) for pair in seen.unlinked - seen.linked if pair <= names.keys())
    if blocked:
        pairs = [f"{names[one]} and {names[other]}" for one, other in blocked]
        more = f" and {len(pairs) - _SHOWN} more pairs" if len(pairs) > _SHOWN else ""
        tried = sorted({port for pair in blocked for number in pair for port in ports.get(number, ())})
        nodes = tuple(names[number] for number in sorted({number for pair in blocked for number in pair}))
        findings.append(
            peer_transfer.BLOCKED.finding(
                nodes=nodes,
                seen=f"no connection between {', '.join(pairs[:_SHOWN])}{more} on port"
                f" {', '.join(map(str, tried[:_SHOWN]))}; the head sent {format_size(sent)} itself",
                fix=peer_transfer.BLOCKED.fix(nodes=", ".join(nodes)),
            )
        )
    for number, why in sorted(seen.absent.items()):
        findings.append(
            peer_transfer.BLOCKED.finding(
                nodes=(names[number],),
                seen=f"{names[number]} took no part in passing files on: {why}",
                fix=peer_transfer.BLOCKED.fix(nodes=names[number]),
            )
        )
    return PeerReport(
        fetched={names[number]: count for number, count in fetched.items()}, sent=sent, findings=tuple(findings)
    )


def _join_names(numbers: Iterable[int], names: Mapping[int, str]) -> str:
    return ", ".join(names[number] for number in sorted(numbers) if number in names)
