"""Connection tracking: a full table drops new connections, now and then, with no word to either end."""

from collections.abc import Iterator

from aboard.core.facts import Facts
from aboard.core.probe import Answer, Contents, Files, Probe, Unparsed
from aboard.core.rule import Subject
from aboard.diagnoses import Finding, host
from aboard.lazy import dataclass

FULL = 0.9
_ROOT = "/proc/sys/net/netfilter/"


@dataclass(frozen=True, kw_only=True)
class Conntrack:
    count: int
    most: int


def parse_conntrack(answer: Answer) -> Conntrack | None:
    """None where the kernel tracks no connections."""
    if not isinstance(answer, Contents):
        raise Unparsed("not a list of files")
    if not answer.files:
        return None
    numbers = [answer.files.get(f"{_ROOT}nf_conntrack_{name}", "").strip() for name in ("count", "max")]
    if not all(number.isascii() and number.isdigit() and len(number) < 20 for number in numbers):  # noqa: PLR2004 - 64 bits
        raise Unparsed("no count and no maximum in nf_conntrack_count and nf_conntrack_max")
    return Conntrack(count=int(numbers[0]), most=int(numbers[1]))


CONNTRACK = Probe(
    name="conntrack",
    question=Files(globs=(f"{_ROOT}nf_conntrack_count", f"{_ROOT}nf_conntrack_max")),
    parse=parse_conntrack,
)


def full_conntrack(facts: Facts) -> Iterator[Finding]:
    """At 100 % the kernel drops whoever dials next; all-to-all connections of a large run do the rest."""
    for name, table in facts.of(CONNTRACK).items():
        if table is not None and table.count > FULL * table.most:
            yield host.CONNTRACK.finding(
                nodes=(name,),
                seen=f"{table.count} of {table.most} tracked connections are in use",
                fix=host.CONNTRACK.fix(most=max(table.most, table.count) * 4, node=name),
            )


PART = Subject(name="conntrack", title="there is room for connections", probes=(CONNTRACK,), rules=(full_conntrack,))
