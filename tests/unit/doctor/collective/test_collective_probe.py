"""The multi-node probe against a simulated cluster: what each kind of node makes of it, and what is then said."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import ReachedNode
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.multi_node_probe import ProbeRequest, Replies, Round
from aboard.core.probes.probe import CommandOutput, ProbeParseError
from aboard.diagnoses import Finding
from aboard.doctor.collective.multi_node_probe import COLLECTIVE, CollectiveResult, build_collective_probe
from aboard.doctor.collective.participants import TORCH, NodeCapabilities
from aboard.doctor.collective.rank_report import compute_bandwidth, parse_rank_reports
from aboard.doctor.collective.subject import SUBJECT
from aboard.doctor.network.mesh_probe import MESH
from aboard.doctor.network.mesh_result import ConnectionAttempt, InterfaceAddress, MeshResult, PortKind

FAST, SLOW = 9_000.0, 50.0


def _about(**more: Any) -> NodeCapabilities:
    given = {"torch": True, "cuda": False, "gpus": 0, "cores": 2, "port": 20_500, "token": "t", "machine": ""}
    return NodeCapabilities(**{**given, **more})


def _mesh(names: list[str], *, cut: tuple[str, ...] = ()) -> MeshResult:
    place = {name: f"10.0.0.{at}" for at, name in enumerate(names, start=1)}
    return MeshResult(
        targets=place,
        addresses={name: (InterfaceAddress(interface="eth0", address=f"{place[name]}/24"),) for name in names},
        tries={
            (one, other, kind): ConnectionAttempt(
                outcome="dropped" if other in cut else "ok", local=place[one], remote=place[other]
            )
            for one in names
            for other in names
            for kind in PortKind
            if one != other
        },
    )


class World:
    """Nodes that answer the rounds of the multi-node probe; each test says what is wrong with them."""

    def __init__(
        self, count: int = 4, *, cut: tuple[str, ...] = (), about: Mapping[str, NodeCapabilities] | None = None
    ) -> None:
        self.names = [f"n{at}" for at in range(1, count + 1)]
        nodes = tuple(Node(name=name) for name in self.names)
        reached = ReachedNode(hostname="h", user="u", address="", python="3.11", round_trip=0.0, clock_offset=0.0)
        self.facts = Facts(
            cluster=Cluster(nodes=nodes),
            contacts=dict.fromkeys(self.names, reached),
            answers={TORCH.name: {name: (about or {}).get(name, _about()) for name in self.names}},
            outcomes={MESH.name: _mesh(self.names, cut=cut)},
        )
        self.rounds: list[list[str]] = []
        self.tasks: list[dict[str, Any]] = []

    def hold(self, answer: Callable[[str, dict[str, Any], Mapping[str, int]], Any], *, every: bool = False) -> Facts:
        """`answer` is asked for each node: its name, its task, and who has which rank in its job."""
        script = build_collective_probe(every=every).script(self.facts)
        try:
            asked = next(script)
            while True:
                asked = script.send(self._replies(asked, answer))
        except StopIteration as done:
            outcome = done.value
        return Facts(
            cluster=self.facts.cluster,
            contacts=self.facts.contacts,
            answers=self.facts.answers,
            outcomes={**self.facts.outcomes, COLLECTIVE.name: outcome},
        )

    def _replies(self, asked: Round, answer: Callable[..., Any]) -> Replies:
        self.rounds.append(list(asked))
        tasks = {name: _task(ask) for name, ask in asked.items()}
        self.tasks += tasks.values()
        replies: dict[str, Mapping[str, Any] | Unknown] = {}
        for name, task in tasks.items():
            ranks = {peer: its["rank"] for peer, its in tasks.items() if its["address"] == task["address"]}
            given = answer(name, task, ranks)
            said = given if isinstance(given, (str, Unknown)) else json.dumps({**_well(task, ranks), **given})
            replies[name] = said if isinstance(said, Unknown) else {"code": 0, "stdout": said, "stderr": ""}
        return replies


def _task(ask: ProbeRequest) -> dict[str, Any]:
    task: dict[str, Any] = json.loads(ask.fields["argv"][4])
    return task


def _well(task: dict[str, Any], ranks: Mapping[str, int]) -> dict[str, Any]:
    """What a rank says that did well."""
    partners = [a if b == task["rank"] else b for game in task["games"] for a, b in game if task["rank"] in (a, b)]
    rows = [[op, size, 1, 0.01] for op in ("all_reduce", "all_gather") for size in task["sizes"]]
    return {
        "rank": task["rank"],
        "phase": "done",
        "rows": rows,
        "pairs": dict.fromkeys(map(str, partners), FAST),
        "backend": task["backend"],
        "torch": "2.7.1",
    }


def _findings(facts: Facts) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(each.code, each.severity.word, each.nodes) for each in SUBJECT.judge(facts)]


def _outcome(facts: Facts) -> CollectiveResult:
    outcome = COLLECTIVE.outcome(facts)
    assert isinstance(outcome, CollectiveResult)
    return outcome


def _fails(task: dict[str, Any], ranks: Mapping[str, int], bad: set[str], *, phase: str = "connect") -> dict[str, Any]:
    """A rank of a job in which these nodes are, if all of them are."""
    return {"phase": phase, "error": "waited in vain", "rows": []} if bad <= set(ranks) else {}


def test_all_is_well() -> None:
    """One round, all sizes in the table, no finding."""
    world = World()
    facts = world.hold(lambda _name, _task, _ranks: {})
    assert world.rounds == [world.names]
    assert _findings(facts) == []
    outcome = _outcome(facts)
    assert (outcome.ranks, outcome.backend, len(outcome.rows), len(outcome.rates)) == (4, "gloo", 16, 6)
    assert {task["address"] for task in world.tasks} == {"10.0.0.1"}
    assert world.tasks[0]["defaults"]["GLOO_SOCKET_IFNAME"] == "eth0"
    assert world.tasks[0]["defaults"]["NCCL_SOCKET_IFNAME"] == "=eth0"


def test_bandwidths_are_those_of_nccl_tests() -> None:
    """1 GB in 1 s over 4 ranks: 1 GB/s, 1.5 on the bus of an all-reduce, 0.75 of an all-gather."""
    reduce, gather = (compute_bandwidth(op, 10**9, 1, 1.0, 4) for op in ("all_reduce", "all_gather"))
    assert (reduce.algorithm, reduce.bus) == (1.0, 1.5)
    assert (gather.algorithm, gather.bus) == (1.0, 0.75)


@pytest.mark.parametrize("bad", [{"n3"}, {"n1"}, {"n2", "n4"}], ids=["a node", "the first", "a link"])
def test_what_fails_is_halved(bad: set[str]) -> None:
    """The node or the link is named, and the words are those of the smallest job that failed."""
    facts = World().hold(lambda _name, task, ranks: _fails(task, ranks, bad))
    ((code, severity, nodes),) = _findings(facts)
    assert (code, severity, set(nodes)) == ("collective-failed", "block", bad)
    assert _outcome(facts).rows == ()


def test_who_says_whom_it_waits_for() -> None:
    """Addresses that don't answer are read as nodes, and save rounds."""
    world = World(8)

    def answer(name: str, task: dict[str, Any], ranks: Mapping[str, int]) -> dict[str, Any]:
        told = {"blocked": ["10.0.0.6"]} if name != "n6" else {"told": True}
        return {**_fails(task, ranks, {"n6"}), **(told if "n6" in ranks else {})}

    (finding,) = SUBJECT.judge(world.hold(answer))
    assert finding.nodes == ("n6",)
    assert "were waiting for it" in finding.seen
    assert len(world.rounds) == 3


@pytest.mark.parametrize("count", [2, 6])
def test_a_failure_that_does_not_come_back(count: int) -> None:
    """It is an info, and the table is that of the second job."""
    world = World(count)
    facts = world.hold(
        lambda _name, task, ranks: _fails(task, ranks, set()) if len(world.rounds) == 1 else {},
    )
    assert _findings(facts) == [("collective-once", "info", ())]
    assert len(_outcome(facts).rows) == 16


def test_what_can_not_be_narrowed_down() -> None:
    """Whatever is tried fails, all but pairs: all are named together."""
    facts = World(4).hold(lambda _name, task, ranks: _fails(task, ranks, set()) if len(ranks) > 2 else {})
    ((code, _severity, nodes),) = _findings(facts)
    assert (code, nodes) == ("collective-failed", ("n1", "n2", "n3", "n4"))


@pytest.mark.parametrize(
    "answer",
    [
        {"phase": "import", "error": "ImportError: libfoo.so: cannot open shared object file"},
        {"phase": "gone", "error": "Segmentation fault"},
        "garbage",
    ],
    ids=["import", "gone", "garbage"],
)
def test_a_node_without_a_rank(answer: Any) -> None:
    """It is named with what it said, and the others are tried without it."""
    world = World()
    facts = world.hold(
        lambda name, _task, ranks: (
            answer
            if name == "n3"
            else {"told": True, "phase": "import", "error": "others failed"}
            if "n3" in ranks
            else {}
        )
    )
    assert _findings(facts) == [("collective-no-rank", "block", ("n3",))]
    assert world.rounds == [["n1", "n2", "n3", "n4"], ["n1", "n2", "n4"]]
    assert _outcome(facts).nodes == ("n1", "n2", "n4")


def test_a_torch_without_working_cuda_is_not_called_one_that_can_not_be_imported() -> None:
    """The rank imports torch and finds no GPU: the driver is too old; or torch is a CPU build, and gloo is tested."""
    error = "RuntimeError: torch can't use the GPUs: The NVIDIA driver on your system is too old (found version 12040)"
    world = World(about=dict.fromkeys([f"n{at}" for at in range(1, 5)], _about(gpus=2, cuda=True)))
    facts = world.hold(
        lambda name, _task, ranks: (
            {"phase": "import", "error": error}
            if name == "n3"
            else {"told": True, "phase": "import", "error": "others failed"}
            if "n3" in ranks
            else {}
        )
    )
    (finding,) = SUBJECT.judge(facts)
    assert (finding.code, finding.severity.name, finding.nodes) == ("gpu-cuda", "BLOCK", ("n3",))
    assert "driver on your system is too old" in finding.seen
    assert "import torch; torch.cuda.init()" in finding.fix
    (finding,) = SUBJECT.judge(World(about={"n2": _about(gpus=2)}).hold(lambda *_: {}))
    assert (finding.code, finding.nodes) == ("gpu-cuda", ("n2",))
    assert finding.seen == "torch is a CPU build on n2, so no collective between GPUs was tested"


def test_a_node_that_is_lost_on_the_way() -> None:
    """What became of its rank is unknown; the others are tried without it."""
    world = World()
    facts = world.hold(lambda name, _task, _ranks: Unknown(why="the connection ended") if name == "n2" else {})
    assert _findings(facts) == [("unknown-collective", "warn", ("n2",))]
    assert world.rounds[-1] == ["n1", "n3", "n4"]


LATE = {"phase": "import", "error": "waited in vain in phase import", "late": True}


def test_a_node_that_is_late_with_torch() -> None:
    """It is named when others were ready; when nobody was, the machines are busy and nothing is known."""
    ready = {"phase": "ready", "told": True, "error": "others failed"}
    hung = World().hold(lambda name, _task, ranks: LATE if name == "n3" else ready if "n3" in ranks else {})
    assert _findings(hung) == [("collective-no-rank", "block", ("n3",))]
    busy = World().hold(lambda _name, _task, _ranks: LATE)
    assert _findings(busy) == [("unknown-collective", "warn", ("n1", "n2", "n3", "n4"))]


def test_a_node_that_imports_torch_slowly_is_given_more_time() -> None:
    """From a cold disk the first import takes long: the second try, with more time, tells it from one that hangs."""
    world = World()
    ready = {"phase": "ready", "told": True, "error": "others failed"}
    facts = world.hold(
        lambda name, task, _ranks: {} if task["load"] > 60 else LATE if name == "n3" else ready,
    )
    assert _findings(facts) == []
    assert _outcome(facts).nodes == ("n1", "n2", "n3", "n4")
    assert world.tasks[-1]["within"] > world.tasks[-1]["load"]


def test_wrong_sums() -> None:
    """They are a finding of their own, and halved like a failure."""
    wrong = {"wrong": [["all_reduce", 1024, []]]}
    facts = World().hold(lambda _name, _task, ranks: wrong if "n2" in ranks else {})
    assert _findings(facts) == [("collective-wrong", "block", ("n2",))]


def _slow(nodes: set[str], task: dict[str, Any], name: str, ranks: Mapping[str, int]) -> dict[str, Any]:
    names = {str(rank): peer for peer, rank in ranks.items()}
    pairs = _well(task, ranks)["pairs"]
    link = len(nodes) == 2
    return {
        "pairs": {
            rank: SLOW if (nodes == {name, names[rank]} if link else nodes & {name, names[rank]}) else mbit
            for rank, mbit in pairs.items()
        }
    }


@pytest.mark.parametrize(
    ("bad", "code"), [({"n3"}, "collective-slow-node"), ({"n1", "n4"}, "collective-slow-link")], ids=["node", "link"]
)
def test_what_is_slow_twice_is_named(bad: set[str], code: str) -> None:
    """In two jobs, with its rate and the usual one."""
    world = World()
    facts = world.hold(lambda name, task, ranks: _slow(bad, task, name, ranks))
    (finding,) = SUBJECT.judge(facts)
    assert (finding.code, finding.severity.word, set(finding.nodes)) == (code, "warn", bad)
    assert "50 Mbit/s; typical here is 9,000" in finding.seen
    assert len(world.rounds) == 2


def test_what_is_slow_once_is_nothing() -> None:
    """A machine that was busy for a moment."""
    world = World()
    facts = world.hold(lambda name, task, ranks: _slow({"n3"}, task, name, ranks) if len(world.rounds) == 1 else {})
    assert len(world.rounds) == 2
    assert _findings(facts) == []


@pytest.mark.parametrize("mbit", [1_100.0, 2_500.0])
def test_what_is_fast_enough_is_nothing(mbit: float) -> None:
    """A gigabit over a CPU's sockets is no bad cable, whatever the others do."""
    world = World()
    facts = world.hold(lambda _name, task, ranks: {"pairs": dict.fromkeys(_well(task, ranks)["pairs"], mbit)})
    assert (len(world.rounds), _findings(facts)) == (1, [])


def test_a_port_that_was_taken() -> None:
    """Is tried again with another."""
    world = World()

    def answer(_name: str, task: dict[str, Any], _ranks: Mapping[str, int]) -> dict[str, Any]:
        taken = task["port"] == 20_500
        return {"phase": "meet", "error": "OSError: [Errno 98] Address already in use"} if taken else {}

    assert _findings(world.hold(answer)) == []
    assert [task["port"] for task in world.tasks[::4]] == [20_500, 20_501]


def test_no_torch_no_collective() -> None:
    """Nothing is asked, and it is said where."""
    world = World(about={"n3": _about(torch=False)})
    facts = world.hold(lambda _name, _task, _ranks: {})
    assert world.rounds == []
    (finding,) = SUBJECT.judge(facts)
    assert (finding.code, finding.severity.word, finding.nodes) == ("collective-not-held", "info", ("n3",))
    assert finding.seen == "torch is not installed on n3, so no collective was run"
    assert SUBJECT.untested(facts) == dict.fromkeys(("n1", "n2", "n3", "n4"), "torch is not installed on n3")


def test_many_nodes_of_one_machine() -> None:
    """Some stand for all, and that is said; asked for alone, all take part."""
    world = World(40, about={f"n{at}": _about(machine="box") for at in range(1, 41)})
    facts = world.hold(lambda _name, _task, _ranks: {})
    assert len(world.rounds[0]) == 16
    assert world.rounds[0][0] == "n1"
    (finding,) = SUBJECT.judge(facts)
    assert (finding.code, finding.severity.word, len(finding.nodes)) == ("collective-part", "info", 24)
    assert "tested on 16 of 40 nodes" in finding.seen
    assert _findings(world.hold(lambda _name, _task, _ranks: {}, every=True)) == []


def test_many_machines_all_take_part() -> None:
    """However many there are."""
    world = World(40, about={f"n{at}": _about(machine=f"m{at}") for at in range(1, 41)})
    assert _findings(world.hold(lambda _name, _task, _ranks: {})) == []
    assert len(world.rounds[0]) == 40


def test_a_node_that_the_network_has_named() -> None:
    """Is not waited for once more."""
    world = World(cut=("n3",))
    facts = world.hold(lambda _name, _task, _ranks: {})
    assert world.rounds == [["n1", "n2", "n4"]]
    assert _findings(facts) == [("collective-part", "info", ("n3",))]


def test_gpus_make_ranks() -> None:
    """One for each, by NCCL, whose sizes are larger; the leaders of the nodes are paired."""
    gpus = {f"n{at}": _about(gpus=8, cuda=True) for at in range(1, 3)}
    world = World(2, about=gpus)

    def answer(_name: str, task: dict[str, Any], ranks: Mapping[str, int]) -> str:
        own = [{**_well({**task, "rank": task["rank"] + at}, ranks)} for at in range(8)]
        return json.dumps({"ranks": own})

    outcome = _outcome(world.hold(answer))
    assert (outcome.ranks, outcome.backend) == (16, "nccl")
    assert [task["rank"] for task in world.tasks] == [0, 8]
    assert world.tasks[0]["games"] == [[[0, 8]]]
    assert world.tasks[0]["sizes"][-1] == 256 * 1024**2


@pytest.mark.parametrize(
    "said",
    ["{}", "[]", '{"phase": "dancing", "rank": 0}', '{"phase": "done", "rank": []}', '{"ranks": [1]}'],
)
def test_what_no_rank_says(said: str) -> None:
    """Unparsed, never a pass."""
    with pytest.raises(ProbeParseError):
        parse_rank_reports(CommandOutput(code=0, stdout=said))


def test_an_exercise_that_stumbled() -> None:
    """Unknown is a warning."""
    cluster = Cluster(nodes=(Node(name="n1"),))
    facts = Facts(cluster=cluster, contacts={}, outcomes={COLLECTIVE.name: Unknown(why="KeyError")})
    findings: list[Finding] = SUBJECT.judge(facts)
    assert [(each.code, each.severity.word) for each in findings] == [("unknown-collective", "warn")]
