"""What the real nvidia-smi 535, 550 and 555 print for 18 states of one of 8 GPUs, on a mock of the driver's library.

The recordings are of an H100 and of a GB200 profile: `nvidia-smi.json.xz`. The mock doesn't show every
state, and crashes in a full `-q`: its sections were recorded one by one, and are put together here.
"""

import json
import lzma
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts, parse_answer
from aboard.core.probes.probe import CommandOutput, ProbeParseError
from aboard.diagnoses import Finding
from aboard.doctor.gpu.hardware_health import NVLINK
from aboard.doctor.gpu.nvidia_smi import GPUS, HEALTH, parse_health
from aboard.doctor.gpu.subject import SUBJECT
from aboard.trainer.checks.node_gpus import GPU_SPECS

# The findings for each state: their codes, and what they say about GPU 3.
SHOWN: dict[str, tuple[tuple[str, str], ...]] = {
    "healthy": (),
    "lost": (("gpu-lost", "reports: [GPU is lost]"),),
    "fallen": (("gpu-lost", "reports: [GPU is lost]"),),
    "lost-mid": (("gpu-lost", "reports: GPU is lost"),),
    "ecc": (("gpu-ecc", ": GPU 3 has "), ("gpu-state", "could not replace bad memory rows, and needs repair")),
    "ecc-off": (("gpu-state", "has ECC off"),),
    "throttle": (("gpu-throttled", "(HW Slowdown, HW Thermal Slowdown)"),),
    # A limit that was set, and the usual one, are no faults.
    "powercap": (),
    "power-limited": (),
}
# Their recordings are those of the healthy state.
NOT_SHOWN = {
    *("exclusive", "prohibited", "mig", "pcie-x8", "remap-pending", "remap-failed"),
    *("fabric-degraded", "fabric-progress", "fabric-unhealthy"),
}


@cache
def _load() -> dict[str, Any]:
    path = Path(__file__).with_name("nvidia-smi.json.xz")
    document: dict[str, Any] = json.loads(lzma.decompress(path.read_bytes()))
    return document


def _list_recordings() -> Iterator[tuple[str, str, dict[tuple[str, ...], CommandOutput]]]:
    """Each with its name, its state, and the outputs by argv, with that of `nvidia-smi -q` put together."""
    for name, numbers in _load()["recordings"].items():
        answers = {}
        for number in numbers:
            argv, code, out, err = _load()["outputs"][number]
            answers[tuple(argv)] = CommandOutput(code=code, stdout=out, stderr=err)
        yield name, name.split("/")[1], {**answers, ("nvidia-smi", "-q"): _join_sections(answers)}


def _join_sections(answers: dict[tuple[str, ...], CommandOutput]) -> CommandOutput:
    blocks: dict[str, str] = {}
    for argv, output in answers.items():
        if argv[1] == "-q":
            _, *parts = re.split(r"^(GPU 0.*)$", output.stdout, flags=re.MULTILINE)
            for header, text in zip(parts[::2], parts[1::2], strict=True):
                blocks[header] = blocks.get(header, "") + text.strip("\n") + "\n"
    return CommandOutput(code=0, stdout="".join(f"{header}\n{text}\n" for header, text in blocks.items()))


def _judge(answers: dict[tuple[str, ...], CommandOutput]) -> list[Finding]:
    facts = Facts(
        cluster=Cluster(nodes=(Node(name="n1", slots=8),)),
        contacts={},
        answers={
            probe.name: {"n1": parse_answer(probe, answers[probe.question.argv])}  # type: ignore[union-attr]
            for probe in (GPUS, HEALTH, NVLINK)
        },
    )
    return SUBJECT.judge(facts)


def test_every_recording_is_judged_right() -> None:
    """108 of them: 54 show their state, and yield the right findings; the others are like the healthy one."""
    wrong, count = [], 0
    numbers = _load()["recordings"]
    for name, state, answers in _list_recordings():
        count += 1
        expected, findings = SHOWN.get(state, ()), _judge(answers)
        if [finding.code for finding in findings] != [code for code, _seen in expected] or not all(
            seen in finding.seen for finding, (_code, seen) in zip(findings, expected, strict=True)
        ):
            wrong.append(f"{name}: {[(finding.code, finding.seen) for finding in findings]}")
        assert (state in SHOWN) != (state in NOT_SHOWN)
        # The mock ignores these states: no output differs.
        assert state not in NOT_SHOWN or numbers[name] == numbers[name.replace(f"/{state}/", "/healthy/")]
    assert (wrong, count) == ([], 108)


def test_the_memory_of_a_lost_gpu_is_unknown_and_that_gpu_is_named() -> None:
    """Not a healthy one that happens to be listed first."""
    lost = next(answers for _name, state, answers in _list_recordings() if state == "lost")
    recorded = lost["nvidia-smi", "--query-gpu=memory.total,compute_cap", "--format=csv,noheader,nounits"]
    # Free memory was not recorded; the mock would print the same.
    lines = [f"{line}, {line.partition(',')[0]}" for line in recorded.stdout.splitlines()]
    with pytest.raises(ProbeParseError, match=r"^GPU 3 reports no memory size: \[GPU is lost\], "):
        GPU_SPECS.parse(CommandOutput(code=0, stdout="\n".join(lines)))


def test_memory_that_another_process_holds_is_not_counted() -> None:
    """What the driver reserves, up to 2 GiB, is part of the estimate."""
    smi = CommandOutput(code=0, stdout="81559, 9.0, 81008\n81559, 9.0, 40960\n")
    assert [spec.memory >> 20 for spec in GPU_SPECS.parse(smi)] == [81559, 40960]


def test_an_nvidia_smi_that_crashes_is_unknown() -> None:
    """Neither a pass, nor empty; that it has no driver or no GPUs is reported from the list of GPUs."""
    with pytest.raises(ProbeParseError, match="ended with exit code -11: no output"):
        parse_health(CommandOutput(code=-11, stdout="", stderr=""))
    with pytest.raises(ProbeParseError, match="exit code 15: Failed to query device index"):
        parse_health(
            CommandOutput(
                code=15, stdout="GPU 00000000:4B:00.0\n    Minor Number : 3\n", stderr="Failed to query device index\n"
            )
        )
    for said in (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "No devices were found",
    ):
        assert parse_health(CommandOutput(code=9, stdout=f"{said}\n", stderr="")) == ()
    assert parse_health(CommandOutput(code=127, stdout="", stderr="")) == ()


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("    Remapped Rows\n        Correctable Error : 0\n        Pending : Yes\n", "only a reset replaces"),
        ("    Remapped Rows\n        Pending : No\n        Remapping Failure Occurred : Yes\n", "needs repair"),
        ("    GPU Recovery Action : Reboot\n", "asks for a reset"),
        ("    Compute Mode : Prohibited\n", "compute mode Prohibited"),
        ("    MIG Mode\n        Current : Enabled\n        Pending : Enabled\n", "divided by MIG"),
        (
            "    PCI\n            Link Width\n                Max : 16x\n                Current : 8x\n",
            "fewer PCIe lanes",
        ),
        (
            "    Fabric\n        State : Completed\n        Status : Success\n            Bandwidth : Degraded\n",
            "degraded NVLink bandwidth",
        ),
        ("    Clocks\n        Graphics : Unknown Error\n", "reports: Unknown Error"),
    ],
)
def test_a_state_that_the_mock_does_not_show_is_read_as_documented(text: str, seen: str) -> None:
    """In the layout of `nvidia-smi -q`, of one GPU of two; the fix is for that node."""
    healthy = (
        "GPU 00000000:1A:00.0\n    MIG Mode\n        Current : Disabled\n    Compute Mode : Default\n"
        "    GPU Recovery Action : None\n    Remapped Rows\n        Pending : No\n"
        "        Remapping Failure Occurred : No\n    Other\n        Pending : Yes\n"
    )
    answers = {
        GPUS.question.argv: CommandOutput(code=0, stdout="0, H100, GPU-0, 00000000:1A:00.0, 550, 0\n"),  # type: ignore[union-attr]
        HEALTH.question.argv: CommandOutput(code=0, stdout=f"{healthy}GPU 00000000:1B:00.0\n{text}"),  # type: ignore[union-attr]
        NVLINK.question.argv: CommandOutput(code=0, stdout=""),  # type: ignore[union-attr]
    }
    findings = [finding for finding in _judge(answers) if finding.code != "gpu-count"]
    (finding,) = findings
    assert "00000000:1B:00.0" in finding.seen
    assert seen in finding.seen
    assert "n1" in finding.fix
