"""NCCL's log, from recordings of versions 2.14 to 2.30: each rule fires where it must and only there."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.collective.multi_node_probe import COLLECTIVE, CollectiveResult
from aboard.doctor.collective.nccl_init_log import NcclInitLog, parse_init_log
from aboard.doctor.collective.nccl_rules import NCCL_RULES, _format_counter_command
from aboard.doctor.fabric.rdma_ports import PORTS, RdmaPort

RECORDINGS = Path(__file__).parents[2] / "nccl_logs"
HEALTHY = ("2.14", "2.18", "2.24", "2.27", "2.30")


def _log(name: str) -> NcclInitLog:
    return parse_init_log(Untrusted((RECORDINGS / f"{name}.log").read_text("utf-8")).lines())


def _judge(*names: str, ports: Mapping[str, tuple[RdmaPort, ...]] | None = None) -> list[Finding]:
    nodes = tuple(Node(name=f"n{at}") for at in range(1, len(names) + 1))
    logs = {node.name: _log(name) for node, name in zip(nodes, names, strict=True)}
    facts = Facts(
        cluster=Cluster(nodes=nodes),
        contacts={},
        answers={PORTS.name: ports or {}},
        outcomes={COLLECTIVE.name: CollectiveResult(logs=logs)},
    )
    return [finding for rule in NCCL_RULES for finding in rule(facts)]


def _told(findings: list[Finding]) -> list[tuple[str, tuple[str, ...]]]:
    return [(finding.code, finding.nodes) for finding in findings]


def _port(device: str) -> RdmaPort:
    return RdmaPort(
        device=device,
        number=1,
        state="ACTIVE",
        physical="LinkUp",
        layer="InfiniBand",
        rate=400.0,
        mode="4X NDR",
    )


@pytest.mark.parametrize("version", HEALTHY)
def test_a_healthy_log_of_each_version(version: str) -> None:
    """Version, network, adapters, GPUDirect and the channels are read, whatever the version calls them."""
    log = _log(f"{version}-infiniband")
    assert log.version.startswith(version)
    assert log.networks == (Untrusted("IB"),)
    assert log.hcas == ("mlx5_0", "mlx5_1")
    assert not log.no_device
    assert log.direct["mlx5_0"] is True
    assert log.direct_channels >= 1


@pytest.mark.parametrize("name", [*(f"{version}-infiniband" for version in HEALTHY), "2.21-roce", "2.27-efa"])
def test_healthy_nodes_have_no_finding(name: str) -> None:
    """Nor have plain Ethernet machines, whose NCCL says the same of plugins and GPUDirect as a broken one."""
    assert _judge(name, name) == []
    assert _judge("2.27-ethernet", "2.27-ethernet") == []
    assert _log("2.27-ethernet").direct == {}


def test_merged_adapters() -> None:
    """2.20 to 2.23 list what they merged in braces."""
    log = _log("2.21-roce")
    assert log.hcas == ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")
    assert log.direct_channels == 1


def test_the_trap_of_no_device() -> None:
    """From 2.24 on `NET/IB : Using` follows `No device found`, and means nothing."""
    log = _log("2.24-no-device")
    assert log.no_device
    assert log.hcas == ()
    assert log.networks == (Untrusted("Socket"),)
    assert log.cards == ("eth0", "docker0")


def test_sockets_beside_a_node_that_has_the_fabric() -> None:
    """The node that fell back is named, with what the other took."""
    (finding,) = _judge("2.24-infiniband", "2.24-no-device")
    assert (finding.code, finding.nodes, finding.severity) == ("collective-sockets", ("n2",), Severity.WARN)
    assert "n1 uses IB" in finding.seen


def test_sockets_although_ports_are_up() -> None:
    """All nodes fell back, and the kernel shows active ports."""
    ports = {name: (_port("mlx5_0"),) for name in ("n1", "n2")}
    (finding,) = _judge("2.24-no-device", "2.24-no-device", ports=ports)
    assert (finding.code, finding.nodes) == ("collective-sockets", ("n1", "n2"))
    assert "mlx5_0 is present" in finding.seen
    assert _judge("2.24-no-device", "2.24-no-device") == []


def test_a_plugin_that_was_asked_for() -> None:
    """It is named; the default one that nobody asked for is no finding."""
    log = _log("2.23-plugin-not-found")
    assert log.absent_plugins == (Untrusted("ofi libnccl-net-ofi.so"), Untrusted("AWS Libfabric"))
    assert log.wanted_plugins == (Untrusted("ofi"),)
    findings = _judge("2.23-plugin-not-found", "2.23-plugin-not-found")
    assert _told(findings) == [("collective-plugin", ("n1", "n2"))]
    assert "ofi" in findings[0].seen


def test_a_plugin_that_the_others_have() -> None:
    """One node of a cloud's machines without it takes sockets, and both are said of it."""
    findings = _judge("2.27-efa", "2.27-ethernet")
    assert ("collective-plugin", ("n2",)) in _told(findings)
    assert ("collective-sockets", ("n2",)) in _told(findings)


def test_a_topology_file_that_is_not_there() -> None:
    """A WARN in old versions, an INFO in new ones; the same file everywhere is fine."""
    findings = _judge("2.14-infiniband", "2.14-no-topology-file")
    assert _told(findings) == [("collective-topology", ("n2",))]
    assert "/opt/microsoft/ndv4-topo.xml: No such file or directory" in findings[0].seen
    line = "n1:1:1 [0] NCCL INFO Could not open XML topology file /x.xml : Permission denied"
    assert parse_init_log([Untrusted(line)]).no_topology == "/x.xml: Permission denied"


def test_topology_files_that_differ() -> None:
    """The few that load another one are named."""
    findings = _judge("2.14-infiniband", "2.18-infiniband", "2.14-infiniband")
    assert _told(findings) == [("collective-topology", ("n2",))]


def test_no_gpudirect() -> None:
    """Named with its adapters; sockets say the same and mean nothing by it."""
    findings = _judge("2.27-no-gpudirect", "2.27-infiniband")
    assert _told(findings) == [("collective-no-gpudirect", ("n1",))]
    assert "mlx5_0, mlx5_1" in findings[0].seen


@pytest.mark.parametrize(("name", "hca"), [("2.18-completion-errors", ""), ("2.30-completion-errors", "mlx5_3")])
def test_completions_with_errors(name: str, hca: str) -> None:
    """Old ones say a number, new ones a name and the adapter."""
    assert _log(name).completions == {hca: 1}
    assert _told(_judge(name, name)) == [("collective-fabric-errors", ("n1",)), ("collective-fabric-errors", ("n2",))]


@pytest.mark.parametrize("line", ["", "NCCL", "NCCL INFO ", "\x1b[31mNCCL INFO Channel 00", "Channel 00/0 : via"])
def test_other_lines_are_nobodys_business(line: str) -> None:
    """What isn't NCCL's own, or is cut, leaves nothing."""
    assert parse_init_log([Untrusted(line)]) == NcclInitLog()


def test_an_adapter_whose_name_is_no_name_stays_out_of_the_fix() -> None:
    """It comes from a node's log, and the fix is for a shell."""
    log = parse_init_log(())
    assert "/infiniband/mlx5_0/device" in _format_counter_command(replace(log, completions={"mlx5_0:1": 1}))
    warning = "n1:1:1 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.1<1> with error 12 hca $(id);curl|sh"
    assert parse_init_log([Untrusted(warning)]).completions == {"": 1}
    assert _format_counter_command(parse_init_log([Untrusted(warning)])) == ""
