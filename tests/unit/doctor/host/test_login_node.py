"""A login node of a Slurm cluster is named before anything runs there alone."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_commands import SlurmStandIns

from aboard.core.cluster.cluster import COMMAND_LINE, THIS_MACHINE, Cluster
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Severity
from aboard.doctor.host import login_node
from aboard.engine.check.inspect_slurm import find_login_node

HERE = Cluster(nodes=(Node(name="localhost", transport=TransportKind.LOCAL),))


def find(cluster: Cluster = HERE, **env: str) -> str:
    return asyncio.run(find_login_node(cluster, {**os.environ, **env}))


@pytest.mark.ci
def test_a_machine_that_slurm_runs_no_jobs_on_is_a_login_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it is the only node; not inside a job, or where slurmctld knows it as a node or is silent."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    slurm = SlurmStandIns(tmp_path / "bin", monkeypatch)
    slurm.put("scontrol", 'echo "Node $4 not found"; exit 1')
    slurm.put("sbatch", "")
    assert find() == os.uname().nodename.partition(".")[0]
    assert find(SLURM_JOB_ID="3") == ""
    assert find(Cluster(nodes=(Node(name="n1"), Node(name="n2")))) == ""
    slurm.put("scontrol", 'echo "NodeName=$4 Arch=x86_64"')
    assert find() == ""
    slurm.put("scontrol", 'echo "slurm_load_node error: Unable to contact slurm controller" >&2; exit 1')
    assert find() == ""


def test_a_login_node_that_nobody_named_is_refused_with_what_starts_a_job() -> None:
    """Before a launch and in a check; who names this machine, or types --alone, gets a warning."""
    outcomes = {login_node.LOGIN_NODE: "login1"}
    for source, severity in ((THIS_MACHINE, Severity.BLOCK), (COMMAND_LINE, Severity.WARN)):
        facts = Facts(cluster=replace(HERE, source=source), contacts={}, outcomes=outcomes)
        (finding,) = login_node.find_login_node(facts)
        assert (finding.code, finding.severity, finding.nodes) == ("host-login-node", severity, ("localhost",))
        assert finding.seen.startswith("login1 is the only node, and ")
        assert finding.fix.startswith("salloc --nodes=2    # ")
        assert "--alone" in finding.fix
    assert list(login_node.find_login_node(Facts(cluster=HERE, contacts={}))) == []
