"""The live view of a check, at moments of a story whose clock is passed in."""

import asyncio
import io
from pathlib import Path

import pytest
from made_findings import made_finding
from rich.console import Console

from aboard.commands.check.live_view import CheckLiveView
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import ReachedNode, UnreachedNode
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts
from aboard.core.probes.multi_node_probe import MultiNodeProbe, ProbeRequest, Script
from aboard.core.probes.probe import CommandOutput, Probe, ProbeAnswer, ProbeCommand
from aboard.diagnoses import Severity
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.engine.check.check_cluster import check_cluster

GOLDEN = Path(__file__).parents[2] / "golden" / "ui"
MET = ReachedNode(hostname="h", user="u", address="a", python="3.11", round_trip=0.001, clock_offset=0.0)
GONE = UnreachedNode(reason=UnreachableReason.KEY_REFUSED, said="Permission denied (publickey).")


def first_word(answer: ProbeAnswer) -> str:
    assert isinstance(answer, CommandOutput)
    return answer.stdout.strip()


def probe(name: str) -> Probe[str]:
    return Probe(name=name, question=ProbeCommand(argv=("echo", name)), parse=first_word)


def script(facts: Facts) -> "Script[int]":
    yield {node.name: ProbeRequest(op="ping") for node in facts.list_reached()}
    yield {node.name: ProbeRequest(op="ping") for node in facts.list_reached()}
    return 2


SUBJECTS = (
    Subject(name="reach", title="", probes=(), rules=()),
    Subject(name="host", title="", probes=(probe("kernel"), probe("cores")), rules=()),
    Subject(
        name="network", title="", probes=(), rules=(), multi_node_probes=(MultiNodeProbe(name="pairs", script=script),)
    ),
    Subject(name="software", title="", probes=(probe("torch"),), rules=()),
)


class Diagnosis:
    """A live view with hands on its clock."""

    def __init__(self, nodes: int) -> None:
        self.now = 100.0
        self.live = CheckLiveView(clock=lambda: self.now)
        self.live.began(Cluster(nodes=tuple(Node(name=f"n{number}") for number in range(1, nodes + 1))), SUBJECTS)

    def met(self, *names: str) -> None:
        for name in names:
            self.live.asking(name)

    def done(self, *names: str) -> None:
        for name in names:
            for word in ("kernel", "cores", "torch"):
                self.live.answered(name, word)
            self.live.visited(name, MET)

    def frame(self, width: int) -> str:
        out = io.StringIO()
        Console(file=out, width=width, color_system=None, highlight=False).print(self.live)
        return out.getvalue()


def tell(width: int, nodes: int) -> str:
    """The frames of a check of n1 (quick), n2 (refused), n3 (slow software), n4 and further ones (slow to dial)."""
    story = Diagnosis(nodes)
    live, frames = story.live, [story.frame(width)]
    for number in range(1, nodes + 1):
        live.dialling(f"n{number}", "connecting")
    story.now += 0.4
    live.dialling("n1", "logged-in")
    frames.append(story.frame(width))
    story.met("n1", "n3")
    live.visited("n2", GONE)
    for name in ("n1", "n3"):
        live.answered(name, "kernel")
        live.answered(name, "cores")
    story.now += 2.0
    story.done("n1")
    frames.append(story.frame(width))
    story.now += 1.0
    rest = [f"n{number}" for number in range(3, nodes + 1)]
    story.met(*rest[1:])
    story.done(*rest)
    clock = made_finding(code="host-clock", severity=Severity.WARN, nodes=("n3",), seen="", why="", fix="")
    for subject, findings in {"reach": [], "host": [clock], "software": []}.items():
        live.judged(subject, findings, {})
    live.round("network", 2, ["n1", *rest])
    for name in ("n1", *rest[:-2]):
        live.replied(name)
    story.now += 0.5
    frames.append(story.frame(width))
    return "\n".join(frames)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("nodes", [4, 64])
def test_it_fills_in(width: int, nodes: int) -> None:
    """Few nodes have a row each; many are counted by their state, and who is late is named with what and how long."""
    assert tell(width, nodes) == (GOLDEN / f"live-{nodes}-{width}.txt").read_text("utf-8")


def test_nothing_is_drawn_before_the_check_began() -> None:
    """The first frame may come before the first word."""
    out = io.StringIO()
    Console(file=out, width=80).print(CheckLiveView())
    assert not out.getvalue().strip()


def test_a_judged_subject_that_was_not_tested_has_not_passed() -> None:
    """The live table says of each node what the final one will say: a dash, not a tick."""
    story = Diagnosis(2)
    story.met("n1", "n2")
    story.done("n1", "n2")
    story.live.judged("software", [], {"n1": "no torch"})
    rows = [line.split() for line in story.frame(80).splitlines() if line.startswith("n")]
    assert [(row[0], row[-1]) for row in rows[1:]] == [("n1", "–"), ("n2", "✓")]


class Recorded(CheckLiveView):
    """The live view, with its frames kept at each thing that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def dialling(self, node: str, phase: str) -> None:
        super().dialling(node, phase)
        self.told.append(phase)

    def asking(self, node: str) -> None:
        super().asking(node)
        self.told.append("asking")

    def answered(self, node: str, probe: str) -> None:
        super().answered(node, probe)
        self.told.append(probe)

    def judged(self, subject: str, findings: object, untested: object) -> None:
        self.told.append(f"judged {subject}")

    def round(self, subject: str, number: int, nodes: object) -> None:
        self.told.append(f"{subject} {number}")

    def replied(self, node: str) -> None:
        self.told.append(f"{node} replied")


def test_a_real_check_tells_it_all() -> None:
    """Phases, each probe once, what can be judged before the multi-node probes, and each round with who replied."""
    live = Recorded()
    asyncio.run(
        check_cluster(Cluster(nodes=(Node(name="me", transport=TransportKind.LOCAL),)), SUBJECTS, check_observer=live)
    )
    assert live.told[:3] == ["starting", "agent", "asking"]
    assert sorted(live.told[3:6]) == ["cores", "kernel", "torch"]
    assert live.told[6:] == [
        *("judged reach", "judged host", "judged software"),
        *("network 1", "me replied", "network 2", "me replied", "judged network"),
    ]


def test_what_is_not_asked_is_not_found_well() -> None:
    """A subject whose every question is left to the full check is no part of a quick one's report."""
    slow = Probe(name="slow", question=ProbeCommand(argv=("true",)), parse=first_word, quick=False)
    subject = Subject(name="storage", title="", probes=(slow,), rules=())
    cluster = Cluster(nodes=(Node(name="me", transport=TransportKind.LOCAL),))
    assert list(asyncio.run(check_cluster(cluster, (*SUBJECTS, subject), quick=True)).by_subject) == [
        *("reach", "host", "network", "software")
    ]
    assert "storage" in asyncio.run(check_cluster(cluster, (subject,))).by_subject
