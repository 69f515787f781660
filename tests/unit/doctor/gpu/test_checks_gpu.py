"""The rules on GPUs with recorded nodes: each fires on its fault, names the odd node, and is silent on the healthy."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from replayed_checks import replay_recordings

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts, Unknown, parse_answer
from aboard.core.probes.probe import CommandOutput, FileContents, ProbeCommand, ProbeParseError
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.gpu.gpu_errors import XIDS
from aboard.doctor.gpu.hardware_health import NVLINK, parse_nvlinks, parse_service_state
from aboard.doctor.gpu.nvidia_smi import DRIVER, GPUS, parse_driver, parse_gpus, parse_health
from aboard.doctor.gpu.subject import SUBJECT
from aboard.doctor.gpu.visible_devices import VARIABLE, count_visible_gpus, parse_visible_devices
from aboard.doctor.gpu.xid_errors import KERNEL_LOG, parse_xid_log
from aboard.testing import recorded_node
from aboard.testing.recorded_node import NodeRecording

RECORDINGS = Path(__file__).parents[2] / "recordings"
load = cache(recorded_node.load_recording)
HEALTHY = "h100-infiniband"
ROCE = "a100-roce"


def _judge(*names: str, slots: int | None = None, last: NodeRecording | None = None) -> list[Finding]:
    """Nodes n1, n2, … that answer as recorded; `last` is what the last one answers."""
    nodes = tuple(Node(name=f"n{number}", slots=slots) for number in range(1, len(names) + 1))
    recordings = {node.name: load(RECORDINGS / name) for node, name in zip(nodes, names, strict=True)}
    if last is not None:
        recordings[nodes[-1].name] = last
    return SUBJECT.judge(replay_recordings(Cluster(nodes=nodes), SUBJECT, recordings))


def _healthy_but(**outputs: CommandOutput) -> NodeRecording:
    """The healthy node, with some of its probes answered otherwise."""
    whole = load(RECORDINGS / HEALTHY)
    argvs = {probe.name: probe.question.argv for probe in SUBJECT.probes if isinstance(probe.question, ProbeCommand)}
    return replace(
        whole,
        commands={**whole.commands, **{argvs[name.replace("_", "-")]: output for name, output in outputs.items()}},
    )


@pytest.mark.parametrize(("name", "gpus"), [(HEALTHY, 8), (ROCE, 2), ("plain-cpu", 64), ("power-capped", 8)])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_nodes_that_are_alike_and_well_yield_nothing(name: str, gpus: int, count: int) -> None:
    """With as many slots as GPUs, none said, or slots for CPU processes; a power limit that was set is no fault."""
    assert _judge(*[name] * count, slots=gpus) == []
    assert _judge(*[name] * count) == []


@pytest.mark.parametrize(("name", "tested"), [(HEALTHY, True), ("driver-not-loaded", True), ("plain-cpu", False)])
def test_a_node_without_a_gpu_was_not_tested(name: str, *, tested: bool) -> None:
    """No finding on such a node is no pass; a GPU whose driver isn't loaded is found, not passed over."""
    facts = replay_recordings(Cluster(nodes=(Node(name="n1"),)), SUBJECT, {"n1": load(RECORDINGS / name)})
    assert SUBJECT.untested(facts) == ({} if tested else {"n1": "no NVIDIA GPU and no driver for one"})


@pytest.mark.parametrize(
    ("odd", "code", "seen"),
    [
        ("driver-mismatch", "gpu-driver-mismatch", "Driver/library version mismatch NVML library version: 550.127"),
        ("driver-mismatch", "gpu-driver-mismatch", "the loaded kernel module is 550.90.07"),
        ("driver-not-loaded", "gpu-smi", "couldn't communicate with the NVIDIA driver"),
        ("lost-gpu", "gpu-lost", "Unable to determine the device handle for GPU0000:9B:00.0"),
        ("gpus-hidden", "gpu-hidden", "CUDA_VISIBLE_DEVICES=0 leaves 1 of 8 GPUs for 8 ranks"),
        ("xid-79", "gpu-xid", "Xid 79 for 0000:9b:00 (it has fallen off the bus) and Xid 154"),
        ("xid-63", "gpu-xid", "Xid 63 for 0000:3b:00 (a memory row is marked for remapping"),
        ("ecc-errors", "gpu-ecc", "GPU 6 has 3"),
        ("throttling", "gpu-throttled", "00000000:4C:00.0 (HW Slowdown, HW Thermal Slowdown)"),
        ("no-fabric-manager", "gpu-fabric-manager", "4 NVSwitches, nvidia-fabricmanager is failed, the GPUs' fabric"),
        ("nvlink-down", "gpu-nvlink", "GPU 5 has 16 NVLinks up; identical GPUs have 18"),
        ("other-driver", "gpu-driver", "driver: 535.161.07; the other nodes have 550.90.07"),
        ("other-model", "gpu-model", "GPUs: NVIDIA A100-SXM4-80GB; the other nodes have NVIDIA H100 80GB HBM3"),
    ],
)
def test_the_odd_node_among_healthy_ones_is_named(odd: str, code: str, seen: str) -> None:
    """Exactly that node, with one finding that warns and has something to type."""
    (finding,) = _judge(HEALTHY, HEALTHY, HEALTHY, odd, slots=8)
    assert (finding.code, finding.nodes, finding.severity) == (code, ("n4",), Severity.WARN)
    assert seen in finding.seen
    assert "n4" in finding.fix


def test_what_follows_from_a_gpu_that_fell_off_is_folded_under_it() -> None:
    """Seven GPUs for eight slots is no second fault."""
    (finding,) = _judge(HEALTHY, HEALTHY, HEALTHY, "xid-79", slots=8)
    assert [follows.code for follows in finding.consequences] == ["gpu-count"]
    assert finding.consequences[0].seen == "7 GPUs, but 8 slots"
    assert "reboot" in finding.fix


def test_a_program_s_own_xid_is_information() -> None:
    """Xid 31 is a fault of the program, and the GPU is fine."""
    (finding,) = _judge(HEALTHY, "xid-31")
    assert (finding.code, finding.nodes, finding.severity) == ("gpu-xid", ("n2",), Severity.INFO)


def test_fewer_gpus_than_slots_are_told_with_the_right_number() -> None:
    """Of every node that has too few; one whose slots are fewer than its GPUs is fine."""
    findings = _judge(ROCE, ROCE, slots=4)
    assert [(finding.code, finding.nodes, finding.seen) for finding in findings] == [
        ("gpu-count", ("n1",), "2 GPUs, but 4 slots"),
        ("gpu-count", ("n2",), "2 GPUs, but 4 slots"),
    ]
    assert "slots: 2    # for n1" in findings[0].fix
    assert _judge(ROCE, ROCE, slots=1) == []


def test_picked_slots_count_by_their_highest_number() -> None:
    """Slot 3 needs a fourth GPU, though only one slot was picked."""
    facts = replay_recordings(
        Cluster(nodes=(Node(name="n1", slots=4, picked=(3,)),)), SUBJECT, {"n1": load(RECORDINGS / ROCE)}
    )
    (finding,) = SUBJECT.judge(facts)
    assert finding.seen == "2 GPUs, but 4 slots"


def test_a_node_without_gpus_among_those_that_have_them_is_named() -> None:
    """It has no nvidia-smi and no driver: that is no GPUs, not an unknown."""
    (finding,) = _judge(HEALTHY, HEALTHY, HEALTHY, "plain-cpu")
    assert (finding.code, finding.nodes, finding.seen) == ("gpu-count", ("n4",), "0 GPUs; the other nodes have 8")


def test_no_nvidia_smi_beside_a_driver_is_an_unknown() -> None:
    """The node has GPUs, and nobody to ask about them."""
    whole = load(RECORDINGS / HEALTHY)
    commands = {argv: output for argv, output in whole.commands.items() if argv[0] != "nvidia-smi"}
    (finding,) = _judge(HEALTHY, HEALTHY, slots=8, last=replace(whole, commands=commands))
    assert (finding.code, finding.nodes) == ("unknown-gpus", ("n2",))
    assert "driver 550.90.07 is loaded and lists 8 GPUs" in finding.seen


def test_an_nvidia_smi_that_hangs_is_an_unknown() -> None:
    """A lost GPU often makes it hang; that is said, and no number of GPUs is guessed."""
    hung = CommandOutput(code=-9, stdout="", timed_out=True)
    findings = _judge(HEALTHY, HEALTHY, HEALTHY, slots=8, last=_healthy_but(gpus=hung, gpu_health=hung, nvlink=hung))
    assert [finding.code for finding in findings] == ["unknown-gpus", "unknown-gpu-health", "unknown-nvlink"]
    assert {finding.nodes for finding in findings} == {("n3",)}


def test_a_kernel_log_that_may_not_be_read_is_told_once() -> None:
    """As information: it is so for most users."""
    (finding,) = _judge(*["log-hidden"] * 4)
    assert (finding.code, finding.severity) == ("unknown-kernel-log", Severity.INFO)
    assert finding.nodes == ("n1", "n2", "n3", "n4")


def test_two_drivers_on_two_nodes_name_both() -> None:
    """There is no majority, so both are shown."""
    (finding,) = _judge(HEALTHY, "other-driver")
    assert finding.nodes == ("n1", "n2")
    assert finding.seen == "driver: n1 has 550.90.07 and n2 has 535.161.07"


def test_two_models_in_one_node_are_told() -> None:
    """With how many there are of each."""
    mixed = load(RECORDINGS / ROCE).commands[_argv(GPUS.question)].stdout.replace("A100-PCIE-40GB", "L40S", 1)
    node = replace(load(RECORDINGS / ROCE), commands={_argv(GPUS.question): CommandOutput(code=0, stdout=mixed)})
    found = [finding for finding in _judge(ROCE, last=node) if finding.code == "gpu-model"]
    assert [finding.seen for finding in found] == [
        "GPUs of several models: 1 × NVIDIA L40S and 1 × NVIDIA A100-PCIE-40GB"
    ]


def _argv(question: object) -> tuple[str, ...]:
    assert isinstance(question, ProbeCommand)
    return question.argv


def test_a_guest_whose_host_runs_the_fabric_manager_is_fine() -> None:
    """Its GPUs say that they have joined, which counts more than a service that isn't there."""
    assert _judge(HEALTHY, last=_healthy_but(fabric_manager=CommandOutput(code=4, stdout="inactive\n"))) == []


def test_switches_without_anyone_to_ask_are_information() -> None:
    """A system without systemd, and a driver that doesn't know the fabric's state."""
    health = load(RECORDINGS / ROCE).commands[("nvidia-smi", "-q")]
    node = _healthy_but(fabric_manager=CommandOutput(code=127, stdout=""), gpu_health=health)
    (finding,) = _judge(HEALTHY, last=node)
    assert (finding.code, finding.severity) == ("unknown-fabric-manager", Severity.INFO)


def test_a_service_that_is_down_is_told_where_the_fabric_s_state_is_not_known() -> None:
    """Drivers before 535 don't show it."""
    health = load(RECORDINGS / ROCE).commands[("nvidia-smi", "-q")]
    node = _healthy_but(fabric_manager=CommandOutput(code=3, stdout="inactive\n"), gpu_health=health)
    (finding,) = _judge(HEALTHY, last=node)
    assert finding.code == "gpu-fabric-manager"
    assert finding.seen == "4 NVSwitches, nvidia-fabricmanager is inactive"


@pytest.mark.parametrize("xid", [48, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140, 145])
def test_xids_of_the_hardware_warn(xid: int) -> None:
    """Each with what it means, and with a way to mend it."""
    log = CommandOutput(code=0, stdout=f"[1.0] NVRM: Xid (PCI:0000:3b:00): {xid}, pid=1, name=python\n" * 2 + "dmesg\n")
    (finding,) = _judge(HEALTHY, last=_healthy_but(kernel_log=log))
    assert finding.severity is Severity.WARN
    assert f"Xid {xid} for 0000:3b:00 2 times ({XIDS[xid].what})" in finding.seen


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 999])
def test_xids_of_programs_and_unknown_ones_are_information(xid: int) -> None:
    """What we have no name for isn't held against the GPU."""
    log = CommandOutput(code=0, stdout=f"NVRM: Xid (0000:03:00): {xid}, Channel 00000001\njournal\n")
    (finding,) = _judge(HEALTHY, last=_healthy_but(kernel_log=log))
    assert finding.severity is Severity.INFO


def test_an_error_of_a_switch_warns_where_it_is_fatal() -> None:
    """An SXid names the switch; those that it calls non-fatal, and its registers behind them, are nothing to say."""
    line = "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): {}, {}, Link 48 LTSSM Fault Up\n"
    calm = line.format("22013", "Non-fatal") + line.format("22013", "Severity 0 Engine instance 60")
    assert _judge(HEALTHY, last=_healthy_but(kernel_log=CommandOutput(code=0, stdout=calm + "dmesg\n"))) == []
    log = CommandOutput(code=0, stdout=calm + line.format("20034", "Fatal") + "dmesg\n")
    (finding,) = _judge(HEALTHY, last=_healthy_but(kernel_log=log))
    assert (finding.code, finding.severity) == ("gpu-xid", Severity.WARN)
    assert "SXid 20034 for 0000:06:00 (a fatal error in an NVSwitch" in finding.seen
    assert "nvidia-smi nvlink -e" in finding.fix


def test_the_log_says_who_read_it_last() -> None:
    """`none` is unreadable; silence is a node without a driver."""
    assert not parse_xid_log(CommandOutput(code=0, stdout="none\n")).readable
    assert parse_xid_log(CommandOutput(code=0, stdout="")).readable
    assert parse_xid_log(CommandOutput(code=0, stdout="journal\n")).errors == ()
    with pytest.raises(ProbeParseError):
        parse_xid_log(CommandOutput(code=-9, stdout="", timed_out=True))


def test_lines_of_nvidia_smi_are_gpus() -> None:
    """A card without ECC has no count of errors, which isn't none of them."""
    line = "0, NVIDIA GeForce RTX 4090, GPU-1, 00000000:01:00.0, 550.90.07, [N/A]\n"
    (gpu,) = parse_gpus(CommandOutput(code=0, stdout=line)).gpus
    assert (gpu.index, gpu.model.visible(), gpu.uncorrected) == (0, "NVIDIA GeForce RTX 4090", None)
    assert parse_gpus(CommandOutput(code=6, stdout="No devices were found\n")).complaint == "No devices were found"


@pytest.mark.parametrize(
    "output",
    [
        CommandOutput(code=0, stdout="garbage\n"),
        CommandOutput(code=0, stdout="0, a, b\n"),
        CommandOutput(code=2, stdout='Field "ecc.errors" is not a valid field to query.\n'),
        CommandOutput(code=1, stdout=""),
    ],
)
def test_what_nvidia_smi_never_said_before_is_unknown(output: CommandOutput) -> None:
    """It is neither GPUs nor a complaint that we know."""
    with pytest.raises(ProbeParseError):
        parse_gpus(output)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.07  Sat Feb 17 22:55:48 UTC 2024\n", "535.161.07"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build\n", "580.95.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.84  Release Build\n", "595.84"),
        ("", ""),
    ],
)
def test_the_driver_s_version_is_read_from_both_kinds(text: str, version: str) -> None:
    """The closed one and the open one word it differently."""
    assert parse_driver(FileContents(files={"/proc/driver/nvidia/version": text})).version == version


def test_throttling_is_read_under_both_titles_and_not_from_its_counters() -> None:
    """Newer drivers have a part with counters of almost the same name."""
    text = (
        "GPU 00000000:19:00.0\n"
        "    Clocks Throttle Reasons\n"
        "        HW Slowdown                       : Not Active\n"
        "            HW Power Brake Slowdown       : Active\n"
        "    Clocks Event Reasons Counters\n"
        "        SW Thermal Slowdown               : Active\n"
    )
    (health,) = parse_health(CommandOutput(code=0, stdout=text))
    assert health.slowed == ("HW Power Brake Slowdown",)
    assert (health.fabric, health.status) == ("N/A", "N/A")


def test_links_without_speed_are_not_up() -> None:
    """Inactive, or at zero; a machine without NVLink lists none."""
    text = "GPU 0: NVIDIA H100 PCIe (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n\t Link 2: 0 GB/s\n"
    (links,) = parse_nvlinks(CommandOutput(code=0, stdout=text))
    assert (links.model.visible(), links.up, links.all) == ("NVIDIA H100 PCIe", 1, 3)
    assert parse_nvlinks(CommandOutput(code=127, stdout="")) == ()


def test_a_word_of_systemctl_or_none() -> None:
    """In a container it prints a sentence instead."""
    assert parse_service_state(CommandOutput(code=3, stdout="inactive\n")) == "inactive"
    assert parse_service_state(CommandOutput(code=1, stdout="System has not been booted with systemd\n")) == ""


@pytest.mark.parametrize("probe", SUBJECT.probes, ids=lambda probe: probe.name)
def test_an_answer_of_another_kind_stays_unknown(probe: object) -> None:
    """Files where a command was asked, and the other way round."""
    wrong = [CommandOutput(code=0, stdout=""), FileContents(files={})]
    assert any(isinstance(parse_answer(probe, answer), Unknown) for answer in wrong)  # type: ignore[arg-type]


def test_no_rule_speaks_about_what_was_not_asked() -> None:
    """Without a single answer there is no finding, and no stumble; the quick check asks less."""
    facts = Facts(cluster=Cluster(nodes=(Node(name="n1", slots=8),)), contacts={})
    assert SUBJECT.judge(facts) == []
    quick = {DRIVER.name, GPUS.name, KERNEL_LOG.name, "fabric-manager", "visible-gpus", "cuda"}
    assert {probe.name for probe in SUBJECT.probes if probe.quick} == quick
    assert not NVLINK.quick


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("0,1,2,3,4,5,6,7", 8),
        ("7, 0", 2),
        ("", 0),
        ("-1", 0),
        ("0,8,1", 1),
        ("0,0", 1),
        ("GPU-8f2c,MIG-1", 2),
        ("none", 0),
    ],
)
def test_gpus_are_counted_as_cuda_does(value: str, left: int) -> None:
    """Up to the first entry that is no GPU of eight, or that comes again."""
    assert count_visible_gpus(Untrusted(value), 8) == left


def test_hidden_gpus_matter_only_to_ranks_that_need_them() -> None:
    """Fewer slots are enough; aboard.yaml's own value wins over the node's; picked slots set it anyway."""
    hidden = {"n1": load(RECORDINGS / "gpus-hidden")}

    def codes(node: Node) -> list[str]:
        facts = replay_recordings(Cluster(nodes=(node,)), SUBJECT, hidden)
        return [finding.code for finding in SUBJECT.judge(facts)]

    assert codes(Node(name="n1")) == ["gpu-hidden"]
    assert codes(Node(name="n1", slots=1)) == []
    assert codes(Node(name="n1", slots=2, env={VARIABLE: "3,4"})) == []
    assert codes(Node(name="n1", slots=4, env={VARIABLE: "3,4"})) == ["gpu-hidden"]
    assert codes(Node(name="n1", slots=2, picked=(0, 1))) == []


def test_a_variable_that_is_not_set_hides_nothing() -> None:
    """An empty one hides all."""
    assert parse_visible_devices(CommandOutput(code=0, stdout="all\n")) is None
    assert parse_visible_devices(CommandOutput(code=0, stdout="\n")) == ""
