"""Connection tracking: a full table silently drops new connections."""

from collections.abc import Iterator

from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeFiles, ProbeParseError
from aboard.diagnoses import Finding
from aboard.doctor.host import diagnoses as host
from aboard.doctor.shared.answer_text import extract_files
from aboard.lazy_dataclass import dataclass

FULL = 0.9
_ROOT = "/proc/sys/net/netfilter/"


@dataclass(frozen=True, kw_only=True)
class ConntrackTable:
    count: int
    most: int


def parse_conntrack(answer: ProbeAnswer) -> ConntrackTable | None:
    """None where the kernel tracks no connections."""
    files = extract_files(answer)
    if not files:
        return None
    numbers = [files.get(f"{_ROOT}nf_conntrack_{name}", "").strip() for name in ("count", "max")]
    if not all(number.isascii() and number.isdigit() and len(number) < 20 for number in numbers):  # noqa: PLR2004 - 64 bits
        raise ProbeParseError("no count and no maximum in nf_conntrack_count and nf_conntrack_max")
    return ConntrackTable(count=int(numbers[0]), most=int(numbers[1]))


CONNTRACK = Probe(
    name="conntrack",
    question=ProbeFiles(globs=(f"{_ROOT}nf_conntrack_count", f"{_ROOT}nf_conntrack_max")),
    parse=parse_conntrack,
)


def find_full_conntrack(facts: Facts) -> Iterator[Finding]:
    """At 100 % the kernel drops new connections; the all-to-all connections of a large run fill the rest."""
    for name, table in facts.of(CONNTRACK).items():
        if table is not None and table.count > FULL * table.most:
            yield host.CONNTRACK.finding(
                nodes=(name,),
                seen=f"{table.count} of {table.most} connection tracking entries are in use",
                fix=host.CONNTRACK.fix(most=max(table.most, table.count) * 4, node=name),
            )


PROBES = (CONNTRACK,)
RULES = (find_full_conntrack,)
