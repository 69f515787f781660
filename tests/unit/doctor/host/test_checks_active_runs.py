"""What an active run of Aboard's holds on a node is named as that run, and only `aboard stop` may end it."""

import sys
from dataclasses import replace
from typing import Any

import pytest
from deadlines import until
from evidence_builders import evidence
from made_events import made_event
from supervisor_runs import Run, held

from aboard.agent.inspect import leftover_runs
from aboard.agent.network import port_owners
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.evidence.node_snapshot import RankSnapshot
from aboard.core.plan.plan import Start
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.death.rules import report_port_owner
from aboard.doctor.host.busy_gpus import GPU_PROCESSES, GpuProcess, find_busy_gpus
from aboard.doctor.host.leftovers import LEFTOVERS, find_active_runs, parse_leftovers
from aboard.doctor.host.memory import AVAILABLE_MEMORY, MEMORY, find_low_memory
from aboard.doctor.network.mesh_probe import MESH
from aboard.doctor.network.mesh_result import MeshResult, OccupiedPort
from aboard.doctor.network.subject import find_occupied_port
from aboard.transport.node_session import NodeSession

RUNS = {"brave-otter.2": {"pids": [185, 186], "rss": 60 * 2**30}}
FOUND = parse_leftovers({"runs": {}, "places": [], "strays": [], "active": RUNS})
DEADLY = ("fuser", "kill", "pkill")


def facts(
    port: OccupiedPort | None = None, env: dict[str, str] | None = None, answers: dict[str, Any] | None = None
) -> Facts:
    mesh = MeshResult(targets={"n1": "n1"}, tries={}, addresses={"n1": ()}, taken={"n1": port} if port else {})
    return Facts(
        cluster=Cluster(nodes=(Node(name="n1", env=env or {}),)),
        contacts={},
        answers={name: {"n1": answer} for name, answer in (answers or {}).items()},
        outcomes={MESH.name: mesh, LEFTOVERS.name: {"n1": FOUND}},
    )


@pytest.mark.parametrize("owner", ["python (pid 185) of crew", ""])
def test_a_port_of_an_active_run(owner: str) -> None:
    """Also while its supervisor only reserves the port, which hides who has it; a launch takes another port."""
    taken = OccupiedPort(why="EADDRINUSE", owner=Untrusted(owner), run=Untrusted("brave-otter.2" if owner else ""))
    (finding,) = find_occupied_port(facts(taken))
    assert finding.seen == "port 29500 on n1 is in use by run brave-otter, which is active"
    assert finding.severity is Severity.INFO
    assert finding.fix.startswith("aboard stop brave-otter ")
    assert not any(word in f"{finding.fix} {finding.why}" for word in (*DEADLY, "leftover"))
    (fixed,) = find_occupied_port(facts(taken, {"MASTER_PORT": "29500"}))
    assert fixed.severity is Severity.BLOCK


def test_gpus_of_an_active_run_and_of_others() -> None:
    """Only the processes of others are offered to be terminated."""
    holders = (GpuProcess(pid=185, mib=500), GpuProcess(pid=7, mib=20), GpuProcess(pid=186, mib=500))
    own, other = find_busy_gpus(facts(answers={GPU_PROCESSES.name: holders}))
    assert own.seen == "run brave-otter, which is active, holds 1000 MiB of GPU memory"
    assert own.fix.startswith("aboard stop brave-otter ")
    assert "1 process holds 20 MiB of GPU memory: 7" in other.seen
    assert "185" not in other.fix


def test_an_active_run_is_named_before_another_one_shares_its_nodes() -> None:
    """Once for all of its nodes, before a launch and in a check; not in a Slurm job, where Slurm decides that."""
    (finding,) = find_active_runs(facts())
    assert (finding.code, finding.severity, finding.nodes) == ("host-active-run", Severity.WARN, ("n1",))
    assert finding.seen == "run brave-otter is active on n1"
    assert finding.fix == "aboard stop brave-otter    # or wait for its end: aboard status brave-otter --follow"
    slurm = Cluster(nodes=(Node(name="n1", transport=TransportKind.SLURM),))
    assert list(find_active_runs(replace(facts(), cluster=slurm))) == []


def test_memory_of_an_active_run() -> None:
    """The run that uses most of it is named."""
    (finding,) = find_low_memory(facts(answers={MEMORY.name: 64 * 2**30, AVAILABLE_MEMORY.name: 2**30}))
    assert "run brave-otter, which is active, uses 60 GiB" in finding.seen
    assert finding.fix.startswith("aboard stop brave-otter ")


def test_a_port_that_another_run_takes_at_the_start() -> None:
    """The verdict names that run, and does not offer to end its process."""
    given = evidence({0: RankSnapshot()})
    data = {"port": 29500, "uid": 0, "user": "crew", "pid": 185, "name": "python", "run": "calm-newt", "beside": True}
    given.run.apply(made_event("port_taken", node="n1", at=1.0, **data))
    (cause,) = report_port_owner(given)
    assert "python (pid 185) of the active run calm-newt listens there" in cause.seen  # type: ignore[union-attr]
    assert cause.fix.startswith("aboard stop calm-newt ")  # type: ignore[union-attr]


LISTEN = """
import socket, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
time.sleep(300)
"""


@pytest.mark.ci
def test_the_agent_tells_an_active_run_from_a_leftover(clean: list[Run]) -> None:
    """Its processes and its port carry its name as long as it has a supervisor."""
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        await hold.start(Start(child="0", argv=(sys.executable, "-c", LISTEN)))
        await until(lambda: run.output("0").endswith(b"\n"), 20)
        found = leftover_runs.find_leftovers()
        owner = port_owners.find_port_owner(int(run.output("0")))
        assert run.id in found["active"]
        assert run.id not in found["runs"]
        assert found["active"][run.id]["rss"] > 2**20
        assert owner is not None
        assert owner["run"] == run.id
        assert owner["pid"] in found["active"][run.id]["pids"]
        await hold.end(0.0)
        await until(lambda: "exited" in run.kinds("0"), 20)

    held(run, story)
    assert run.id not in leftover_runs.find_leftovers()["active"]
