"""The fabric's rules on recorded nodes: each fires on its fault, names the odd node, and is silent on the healthy."""

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from replayed_checks import replay_recordings

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import ReachedNode
from aboard.core.cluster.container import Container
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts, Unknown, parse_answer
from aboard.core.probes.probe import CommandOutput, FileContents, ProbeCommand, ProbeParseError
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.fabric.gpudirect import parse_acs, parse_gpudirect
from aboard.doctor.fabric.nccl_plugins import PLUGINS, parse_plugins
from aboard.doctor.fabric.nccl_settings import list_absent_hcas, parse_env, select_ports
from aboard.doctor.fabric.rdma_ports import PORTS, RdmaPort, parse_rdma_ports
from aboard.doctor.fabric.roce_rails import PINGS, RAILS, send_echoes
from aboard.doctor.fabric.subject import SUBJECT
from aboard.testing import recorded_node
from aboard.testing.recorded_node import NodeRecording

RECORDINGS = Path(__file__).parents[2] / "recordings"
load = cache(recorded_node.load_recording)
HEALTHY = "h100-infiniband"
ROCE = "a100-roce"


def _facts(*names: str, env: dict[str, str] | None = None, odd_env: dict[str, str] | None = None) -> Facts:
    """Nodes n1, n2, … that answer as recorded; `odd_env` is the last one's."""
    nodes = [Node(name=f"n{number}", env=env or {}) for number in range(1, len(names) + 1)]
    nodes[-1] = replace(nodes[-1], env={**(env or {}), **(odd_env or {})})
    recordings = {node.name: load(RECORDINGS / name) for node, name in zip(nodes, names, strict=True)}
    return replay_recordings(Cluster(nodes=tuple(nodes)), SUBJECT, recordings)


def _judge(*names: str, env: dict[str, str] | None = None, odd_env: dict[str, str] | None = None) -> list[Finding]:
    return SUBJECT.judge(_facts(*names, env=env, odd_env=odd_env))


def _port(name: str, layer: str = "InfiniBand") -> RdmaPort:
    device, _, number = name.partition(":")
    return RdmaPort(
        device=device,
        number=int(number or 1),
        state="ACTIVE",
        physical="LinkUp",
        layer=layer,
        rate=400.0,
        mode="4X NDR",
    )


@pytest.mark.parametrize(("name", "tested"), [(HEALTHY, True), (ROCE, True), ("h100-efa", True), ("plain-cpu", False)])
def test_a_node_without_an_adapter_was_not_tested(name: str, *, tested: bool) -> None:
    """No finding on such a node is no pass."""
    assert SUBJECT.untested(_facts(name)) == ({} if tested else {"n1": "no InfiniBand, RoCE or EFA adapter"})


@pytest.mark.parametrize("name", [HEALTHY, ROCE, "plain-cpu"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_nodes_that_are_alike_and_well_yield_nothing(name: str, count: int) -> None:
    """InfiniBand, RoCE, or neither, alone or many."""
    assert _judge(*[name] * count) == []


@pytest.mark.parametrize(
    ("odd", "code", "seen"),
    [
        ("port-down", "fabric-port-down", "mlx5_3 is DOWN (Polling); expected ACTIVE"),
        ("no-subnet-manager", "fabric-port-down", "mlx5_6 is INIT (LinkUp); expected ACTIVE"),
        ("all-ports-down", "fabric-sockets", "none of its ports is up: mlx5_0 is DOWN (Disabled)"),
        ("missing-hca", "fabric-port-missing", "7 InfiniBand ports; the other nodes have 8; missing mlx5_7"),
        ("degraded-rate", "fabric-rate", "mlx5_3 runs at 200 Gb/s (4X HDR), compared with 400 Gb/s on the other nodes"),
        ("one-lane", "fabric-rate", "mlx5_5 runs at 100 Gb/s (1X NDR), on one of four lanes"),
        ("flapping", "fabric-flaps", "mlx5_2 went down 57 times; the median port went down 0 times"),
        ("mixed-infiniband-roce", "fabric-mixed", "8 InfiniBand, 1 Ethernet (mlx5_bond_0)"),
        ("no-peermem", "fabric-no-gpudirect", "nvidia_peermem isn't loaded"),
        ("acs-on", "fabric-acs", "ACS is enabled on 2 PCI bridges: 15:01.0 and 97:01.0"),
        ("low-memlock", "fabric-memlock", "a rank can lock only 64 KiB of memory"),
    ],
)
@pytest.mark.parametrize("healthy", [1, 3])
def test_the_odd_node_among_healthy_ones_is_named(odd: str, code: str, seen: str, healthy: int) -> None:
    """Exactly that node, with one finding that warns and has something to type; also among two."""
    (finding,) = _judge(*[HEALTHY] * healthy, odd)
    assert finding.code == code
    assert finding.nodes == (f"n{healthy + 1}",)
    assert finding.severity is Severity.WARN
    assert seen in finding.seen
    assert f"n{healthy + 1}" in finding.fix


def test_a_node_without_any_adapter_among_those_that_have_them_would_use_sockets() -> None:
    """It is named, and the others are counted."""
    (finding,) = _judge(HEALTHY, HEALTHY, HEALTHY, "plain-cpu")
    assert finding.code == "fabric-sockets"
    assert finding.nodes == ("n4",)
    assert "it has no RDMA adapter; 3 other nodes have RDMA" in finding.seen


def test_infiniband_that_is_down_everywhere_is_said_of_every_node() -> None:
    """Nobody has it up, but the cards say that it was meant to be."""
    findings = _judge("all-ports-down", "all-ports-down")
    assert [(finding.code, finding.nodes) for finding in findings] == [
        ("fabric-sockets", ("n1",)),
        ("fabric-sockets", ("n2",)),
    ]


def test_a_port_that_is_down_on_all_nodes_is_left_alone() -> None:
    """A second port without a cable is how such cards are sold."""
    assert _judge("port-down", "port-down", "port-down") == []


def test_all_nodes_that_mix_layers_share_one_finding() -> None:
    """With the setting that excludes the odd card, whole by its name; once it is set, there is nothing left."""
    (finding,) = _judge(*["mixed-infiniband-roce"] * 4)
    assert finding.nodes == ("n1", "n2", "n3", "n4")
    assert finding.fix.startswith("NCCL_IB_HCA: '^=mlx5_bond_0'")
    assert _judge(*["mixed-infiniband-roce"] * 4, env={"NCCL_IB_HCA": "^=mlx5_bond_0"}) == []


def test_nodes_of_the_other_layer_are_named() -> None:
    """RoCE among InfiniBand: the two can't speak with each other."""
    found = [finding for finding in _judge(HEALTHY, HEALTHY, HEALTHY, ROCE) if finding.code == "fabric-mixed"]
    assert [finding.nodes for finding in found] == [("n4",)]
    assert found[0].seen == "its ports are in Ethernet mode; the other nodes' ports are in InfiniBand mode"


def test_a_card_that_is_gone_does_not_make_the_others_slow() -> None:
    """Names move up when one is missing; a slower storage card that took a fast one's name is no bad link."""
    storage = {"/sys/class/infiniband/mlx5_7/ports/1/rate": "200 Gb/sec (4X HDR)\n"}
    whole = load(RECORDINGS / HEALTHY)
    whole = replace(whole, files={**whole.files, **storage})
    moved = {
        path: text
        for path, text in load(RECORDINGS / "missing-hca").files.items()
        if path != "/sys/class/infiniband/mlx5_6/ports/1/rate"
    } | {"/sys/class/infiniband/mlx5_6/ports/1/rate": "200 Gb/sec (4X HDR)\n"}
    nodes = tuple(Node(name=f"n{number}") for number in range(1, 5))
    recordings = {node.name: whole for node in nodes} | {"n4": replace(whole, files=moved)}
    findings = SUBJECT.judge(replay_recordings(Cluster(nodes=nodes), SUBJECT, recordings))
    assert [(finding.code, finding.nodes) for finding in findings] == [("fabric-port-missing", ("n4",))]


def test_slow_links_on_different_ports_are_each_named() -> None:
    """Each node is as slow as the next in sum, but the same port is fast elsewhere."""
    findings = _judge("degraded-rate", HEALTHY, HEALTHY, "one-lane")
    assert [(finding.code, finding.nodes) for finding in findings] == [
        ("fabric-rate", ("n1",)),
        ("fabric-rate", ("n4",)),
    ]


@pytest.mark.parametrize(("downs", "severity"), [(2, None), (3, Severity.INFO), (12, Severity.WARN)])
def test_how_often_a_link_went_down_decides_how_grave_it_is(downs: int, severity: Severity | None) -> None:
    """Once or twice is a switch that was restarted."""
    whole = load(RECORDINGS / HEALTHY)
    files = {**whole.files, "/sys/class/infiniband/mlx5_1/ports/1/counters/link_downed": f"{downs}\n"}
    facts = replay_recordings(Cluster(nodes=(Node(name="n1"),)), SUBJECT, {"n1": replace(whole, files=files)})
    assert [finding.severity for finding in SUBJECT.judge(facts)] == ([severity] if severity else [])


def test_many_symbol_errors_are_told() -> None:
    """A link that never went down can still be a bad one."""
    whole = load(RECORDINGS / HEALTHY)
    files = {**whole.files, "/sys/class/infiniband/mlx5_1/ports/1/counters/symbol_error": "65535\n"}
    facts = replay_recordings(Cluster(nodes=(Node(name="n1"),)), SUBJECT, {"n1": replace(whole, files=files)})
    (finding,) = SUBJECT.judge(facts)
    assert finding.code == "fabric-flaps"
    assert "had 65535 symbol errors" in finding.seen


@pytest.mark.parametrize(
    ("odd", "code", "seen"),
    [
        ("roce-no-address", "fabric-gid-none", "no RoCE v2 address on mlx5_1 (ens2f0np0)"),
        ("roce-shifted-gids", "fabric-gid-index", "its RoCE v2 address has GID index 5; on the other nodes it is 3"),
        ("other-nccl-conf", "fabric-nccl-settings", "n4 has NCCL_PROTO=LL; the others have no NCCL_PROTO"),
        (
            "nccl-conf-missing",
            "fabric-nccl-settings",
            "n4 has no NCCL_IB_QPS_PER_CONNECTION; the others have NCCL_IB_QPS_PER_CONNECTION=4",
        ),
    ],
)
def test_the_odd_roce_node_is_named(odd: str, code: str, seen: str) -> None:
    """Addresses and settings that differ from those of three others."""
    (finding,) = _judge(ROCE, ROCE, ROCE, odd)
    assert (finding.code, finding.nodes, finding.seen) == (code, ("n4",), seen)
    assert finding.severity is Severity.WARN


def test_the_gid_index_is_proposed_for_the_node_that_needs_another() -> None:
    """As a line for aboard.yaml; once it is set there, the node is right."""
    (finding,) = _judge(ROCE, ROCE, ROCE, "roce-shifted-gids")
    assert finding.fix.startswith("NCCL_IB_GID_INDEX: '5'    # in `env:` of n4")
    assert _judge(ROCE, ROCE, ROCE, "roce-shifted-gids", odd_env={"NCCL_IB_GID_INDEX": "5"}) == []


def test_a_gid_index_that_is_set_and_wrong_is_told() -> None:
    """The one for all fits three nodes, and points at RoCE v2's link-local entry on the fourth."""
    (finding,) = _judge(ROCE, ROCE, ROCE, "roce-shifted-gids", env={"NCCL_IB_GID_INDEX": "3"})
    assert finding.nodes == ("n4",)
    assert (
        "NCCL_IB_GID_INDEX=3 is set, but that is not the index of a RoCE v2 address; the RoCE v2 address has index 5 on"
        " mlx5_0 and mlx5_1" in finding.seen
    )


def test_an_adapter_that_is_asked_for_and_not_there_is_told() -> None:
    """With the names that the node has."""
    (finding,) = _judge(HEALTHY, HEALTHY, HEALTHY, HEALTHY, odd_env={"NCCL_IB_HCA": "mlx5_3,mlx5_9"})
    assert (finding.code, finding.nodes) == ("fabric-hca-absent", ("n4",))
    assert "selects mlx5_9, which the node doesn't have; it has mlx5_0, mlx5_1" in finding.seen


@pytest.mark.parametrize("env", [{"NCCL_IB_DISABLE": "1"}, {"NCCL_IB_HCA": "=mlx4_0"}])
def test_a_setting_that_keeps_one_node_off_its_adapters_is_told(env: dict[str, str]) -> None:
    """The cards are fine; NCCL was told not to use them."""
    findings = _judge(HEALTHY, HEALTHY, HEALTHY, HEALTHY, odd_env=env)
    assert findings[0].code == "fabric-sockets"
    assert next(iter(env)) in findings[0].seen
    assert {finding.nodes for finding in findings} == {("n4",)}


def test_sockets_for_all_by_wish_are_no_finding() -> None:
    """NCCL_IB_DISABLE on every node is a decision."""
    assert _judge(HEALTHY, HEALTHY, env={"NCCL_IB_DISABLE": "1"}) == []


def _with_topology(texts: Sequence[str | None]) -> list[Finding]:
    path = "/etc/crusoe/nccl_topo/h100-80gb-sxm-ib.xml"
    whole = load(RECORDINGS / HEALTHY)
    nodes = tuple(Node(name=f"n{number}", env={"NCCL_TOPO_FILE": path}) for number in range(1, len(texts) + 1))
    recordings = {
        node.name: replace(whole, files={**whole.files, **({} if text is None else {path: text})})
        for node, text in zip(nodes, texts, strict=True)
    }
    return SUBJECT.judge(replay_recordings(Cluster(nodes=nodes), SUBJECT, recordings))


def test_a_topology_file_that_one_node_lacks_or_has_otherwise_is_told() -> None:
    """The file that NCCL_TOPO_FILE names is looked at, wherever it is."""
    assert _with_topology(["<system/>"] * 4) == []
    (lacking,) = _with_topology(["<system/>"] * 3 + [None])
    assert (lacking.code, lacking.nodes) == ("fabric-topology", ("n4",))
    assert "h100-80gb-sxm-ib.xml, which can't be read here" in lacking.seen
    assert lacking.fix.startswith("scp n1:/etc/crusoe/")
    (other,) = _with_topology(["<system/>"] * 3 + ["<other/>"])
    assert (other.nodes, other.seen) == (("n4",), "the topology file differs; most nodes have the same file")
    (both,) = _with_topology(["<system/>", "<other/>"])
    assert both.nodes == ("n1", "n2")


def test_who_may_not_see_acs_is_told_once() -> None:
    """As information: an ordinary user never may."""
    (finding,) = _judge(*["acs-hidden"] * 4)
    assert (finding.code, finding.severity) == ("unknown-acs", Severity.INFO)
    assert finding.nodes == ("n1", "n2", "n3", "n4")


def test_root_is_not_held_to_the_limit_of_locked_memory() -> None:
    """The kernel lets who has CAP_IPC_LOCK lock as much as there is."""
    facts = _facts("low-memlock")
    met = facts.contacts["n1"]
    assert isinstance(met, ReachedNode)
    assert SUBJECT.judge(facts)
    assert SUBJECT.judge(replace(facts, contacts={"n1": replace(met, user="root")})) == []


def test_two_faults_at_once_are_both_named() -> None:
    """On two nodes, each with its own."""
    findings = _judge(HEALTHY, HEALTHY, "no-peermem", "port-down")
    assert {(finding.code, finding.nodes) for finding in findings} == {
        ("fabric-no-gpudirect", ("n3",)),
        ("fabric-port-down", ("n4",)),
    }


def test_the_open_driver_on_a_new_kernel_needs_no_peermem() -> None:
    """It hands memory over by DMA-BUF, which came with Linux 5.12; a GeForce card can't do either."""
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.90.07  Release Build\n"
    files = {"/proc/driver/nvidia/version": version, "/proc/sys/kernel/osrelease": "5.12.0\n"}
    card = "/proc/driver/nvidia/gpus/0000:01:00.0/information"
    assert parse_gpudirect(FileContents(files=files)).dma_buf
    assert not parse_gpudirect(FileContents(files={**files, "/proc/sys/kernel/osrelease": "5.4.0-26\n"})).dma_buf
    assert parse_gpudirect(FileContents(files={card: "Model: \t\t NVIDIA L40S\n"})).gpus == 1
    assert parse_gpudirect(FileContents(files={card: "Model: \t\t NVIDIA GeForce RTX 4090\n"})).gpus == 0


def test_ports_are_read_in_the_order_of_their_numbers() -> None:
    """mlx5_2 before mlx5_10; iWARP and EFA are not for NCCL's InfiniBand code."""
    files = {}
    for device in ("mlx5_10", "mlx5_2", "irdma0", "rdmap0s6"):
        files[f"/sys/class/infiniband/{device}/node_type"] = "4: RNIC\n" if device == "irdma0" else "1: CA\n"
        files[f"/sys/class/infiniband/{device}/ports/1/state"] = "4: ACTIVE\n"
        files[f"/sys/class/infiniband/{device}/ports/1/link_layer"] = (
            "Unspecified\n" if device == "rdmap0s6" else "Ethernet\n"
        )
    ports = parse_rdma_ports(FileContents(files=files))
    assert [port.name for port in ports] == ["mlx5_2", "mlx5_10"]
    assert (ports[0].rate, ports[0].link_downed) == (0.0, None)


@pytest.mark.parametrize("state", ["", "ACTIVE", "4:ACTIVE", "\x1b[31m"])
def test_a_state_that_can_not_be_read_is_unknown(state: str) -> None:
    """Neither up nor down: it is said, with a command to look."""
    files = {"/sys/class/infiniband/mlx5_0/ports/1/state": state}
    with pytest.raises(ProbeParseError):
        parse_rdma_ports(FileContents(files=files))
    facts = Facts(
        cluster=Cluster(nodes=(Node(name="n1"),)),
        contacts={},
        answers={PORTS.name: {"n1": parse_answer(PORTS, FileContents(files=files))}},
    )
    assert [finding.code for finding in SUBJECT.judge(facts)] == ["unknown-rdma-ports"]


@pytest.mark.parametrize("probe", SUBJECT.probes, ids=lambda probe: probe.name)
def test_an_answer_of_another_kind_stays_unknown(probe: object) -> None:
    """Files where a command was asked, and the other way round."""
    wrong = [CommandOutput(code=0, stdout=""), FileContents(files={})]
    assert any(isinstance(parse_answer(probe, answer), Unknown) for answer in wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("", ["mlx5_1", "mlx5_1:2", "mlx5_10"]),
        ("mlx5_1", ["mlx5_1", "mlx5_1:2", "mlx5_10"]),
        ("=mlx5_1", ["mlx5_1", "mlx5_1:2"]),
        ("=mlx5_1:2", ["mlx5_1:2"]),
        ("^mlx5_1", []),
        ("^=mlx5_1", ["mlx5_10"]),
        ("^=mlx5_1:1,mlx5_10", ["mlx5_1:2"]),
    ],
)
def test_adapters_are_chosen_as_nccl_does(spec: str, names: list[str]) -> None:
    """A name is a prefix unless `=` says whole, and `^` refuses."""
    ports = (_port("mlx5_1"), _port("mlx5_1:2"), _port("mlx5_10"))
    assert [port.name for port in select_ports(ports, {"NCCL_IB_HCA": Untrusted(spec)})] == names
    assert list_absent_hcas(ports, Untrusted(spec)) == []
    assert list_absent_hcas(ports, Untrusted("=mlx5_1,mlx5_3")) == ["mlx5_3"]


def test_only_nccl_variables_are_taken_from_an_environment() -> None:
    """None set is what grep says with 1; what else it says is unknown."""
    assert parse_env(CommandOutput(code=0, stdout="NCCL_IB_HCA=mlx5\nNCCL_DEBUG=INFO\n")) == {
        "NCCL_IB_HCA": "mlx5",
        "NCCL_DEBUG": "INFO",
    }
    assert parse_env(CommandOutput(code=1, stdout="")) == {}
    with pytest.raises(ProbeParseError):
        parse_env(CommandOutput(code=127, stdout=""))


def test_acs_counts_at_bridges_only() -> None:
    """A card of its own may have it; it is switches that send traffic astray."""
    text = "19:00.0 3D controller: NVIDIA\n\t\tACSCtl:\tSrcValid+ ReqRedir+\n"
    assert parse_acs(CommandOutput(code=0, stdout=text)).bridges == ()
    assert parse_acs(CommandOutput(code=0, stdout=text)).readable


def test_no_rule_speaks_about_what_was_not_asked() -> None:
    """Without a single answer there is no finding, and no stumble."""
    assert SUBJECT.judge(Facts(cluster=Cluster(nodes=(Node(name="n1"),)), contacts={})) == []
    assert SUBJECT.judge(replay_recordings(Cluster(nodes=(Node(name="n1"),)), SUBJECT, {"n1": NodeRecording()})) != []


def test_a_plugin_that_the_loader_does_not_find_is_told() -> None:
    """EFA can't do without one: it is said where it lies, and nothing on nodes that have it."""
    assert _judge(*["h100-efa"] * 4) == []
    (finding,) = _judge("h100-efa", "h100-efa", "h100-efa", "efa-plugin-aside")
    assert (finding.code, finding.nodes, finding.severity) == ("fabric-plugin", ("n4",), Severity.WARN)
    assert finding.seen.startswith("it has 32 EFA adapters, which NCCL can use only through a plugin, but the loader")
    assert finding.fix.startswith("setup: ['export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu:")


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        (
            {"NCCL_NET_PLUGIN": "aws-ofi"},
            "NCCL_NET_PLUGIN is aws-ofi, but the loader can't find libnccl-net-aws-ofi.so",
        ),
        ({"NCCL_NET_PLUGIN": "/opt/x.so"}, "NCCL_NET_PLUGIN is /opt/x.so, but the loader can't find /opt/x.so here"),
        ({"NCCL_NET": "AWS Libfabric"}, "NCCL_NET is AWS Libfabric, which is not built into NCCL"),
        ({"NCCL_NET": "IB"}, None),
        ({"NCCL_NET_PLUGIN": "none"}, None),
    ],
)
def test_a_plugin_that_is_asked_for_must_be_there(env: dict[str, str], reason: str | None) -> None:
    """What NCCL has itself, and none by wish, is nothing to find."""
    found = [finding.seen for finding in _judge(HEALTHY, HEALTHY, env=env) if finding.code == "fabric-plugin"]
    assert [seen[: len(reason or "")] for seen in found] == [reason] * 2 if reason else found == []


def test_a_plugin_that_most_nodes_have_is_missed() -> None:
    """With who has it; in a container other files count, so nothing is said."""
    found = [finding for finding in _judge("h100-efa", "h100-efa", HEALTHY) if finding.code == "fabric-plugin"]
    assert [finding.nodes for finding in found] == [("n3",)]
    assert found[0].fix.startswith("ls -l /opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so; dpkg -S")
    facts = _facts("efa-plugin-aside")
    inside = replace(facts.cluster.nodes[0], container=Container(runtime="docker", image="train"))
    assert SUBJECT.judge(replace(facts, cluster=Cluster(nodes=(inside,)))) == []


def test_the_search_for_plugins_for_real(tmp_path: Path) -> None:
    """The script finds what is on the path that aboard.yaml gives, after the `setup` lines."""
    (tmp_path / "libnccl-net-x.so").touch()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "libnccl-net.so").touch()
    node = Node(
        name="n1",
        env={"LD_LIBRARY_PATH": str(tmp_path)},
        setup=(f"export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:{tmp_path}/more",),
    )
    question = PLUGINS.question_for(node)
    assert isinstance(question, ProbeCommand)
    done = subprocess.run(question.argv, capture_output=True, text=True, check=True, timeout=20)
    found = parse_plugins(CommandOutput(code=0, stdout=done.stdout)).found
    assert {f"{tmp_path}/libnccl-net-x.so", f"{tmp_path}/more/libnccl-net.so"} <= set(found)


def test_rails_with_a_way_between_them_are_well() -> None:
    """Also where nobody is pinged, since two names are one machine."""
    assert _judge(ROCE, "rails-joined") == []
    assert _judge(ROCE, "rails-joined", env={"NCCL_CROSS_NIC": "1"}) == []


@pytest.mark.parametrize(("told", "severity"), [(None, Severity.INFO), ("1", Severity.WARN), ("0", None)])
def test_rails_that_are_apart(told: str | None, severity: Severity | None) -> None:
    """How many build them: a warning only if NCCL is told to send across, and nothing if it is told not to."""
    findings = _judge(ROCE, "rails-apart", env={} if told is None else {"NCCL_CROSS_NIC": told})
    assert [(each.code, each.severity) for each in findings] == ([("fabric-rails", severity)] if severity else [])
    if findings:
        assert findings[0].nodes == ("n2", "n1")
        assert "mlx5_0 on n2 (10.1.0.8) gets no ping reply from mlx5_1 on n1 (10.2.0.7)" in findings[0].seen
        assert findings[0].fix.startswith("NCCL_CROSS_NIC: '0'")


def test_a_rail_that_is_cut_is_told_with_its_two_ends() -> None:
    """The other rail passes echoes, so they are not filtered; whether rails are connected stays open."""
    (finding,) = _judge(ROCE, "rail-cut")
    assert (finding.code, finding.nodes, finding.severity) == ("fabric-rail-cut", ("n2", "n1"), Severity.WARN)
    assert "n2 gets no ping reply from n1 on mlx5_1 (10.2.0.8 → 10.2.0.7); 1 other rail works" in finding.seen


def test_echoes_that_can_not_be_sent_say_nothing() -> None:
    """No ping on the node, one that may not be sent, or none that comes back at all: nobody is blamed."""
    facts = _facts(ROCE, "rails-apart")
    script = send_echoes(facts)
    plan = next(script)["n2"].fields["argv"][4:]
    for code in ("2", "127", "1"):
        script = send_echoes(facts)
        next(script)
        with pytest.raises(StopIteration) as done:
            script.send(
                {
                    "n1": Unknown(why="gone"),
                    "n2": {"code": 0, "stdout": "".join(f"{pair} {code}\n" for pair in plan), "stderr": ""},
                }
            )
        outcomes = {**facts.outcomes, RAILS.name: done.value.value}
        assert SUBJECT.judge(replace(facts, outcomes=outcomes)) == []


def test_the_pings_for_real() -> None:
    """The script says each pair with ping's own code: an address that isn't ours can't be sent from."""
    argv = ["sh", "-c", PINGS, "sh", "127.0.0.1>127.0.0.1", "192.0.2.1>192.0.2.2"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=20)
    assert {line.rpartition(" ")[0] for line in done.stdout.splitlines()} == set(argv[4:])
    assert "127.0.0.1>127.0.0.1 1\n" not in done.stdout
    assert "192.0.2.1>192.0.2.2 0\n" not in done.stdout
