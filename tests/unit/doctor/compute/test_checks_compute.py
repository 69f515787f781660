"""The rates of slots against the others of their kind, and the report of NVIDIA's own diagnostics."""

import json
from typing import Any

import pytest

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts, parse_answer
from aboard.core.probes.probe import CommandOutput, ProbeCommand, ProbeParseError
from aboard.diagnoses import Finding, Severity
from aboard.doctor.compute.dcgm_report import DCGM, DcgmReport, parse_dcgm
from aboard.doctor.compute.subject import SPEED, SUBJECT, build_subject, list_unmeasured_nodes

H100 = {
    "kind": "NVIDIA H100 80GB HBM3",
    "size": 8192,
    "multiply": 712.0,
    "copy": 2410.0,
    "to_device": 55.0,
    "from_device": 54.0,
}
CPU = {"kind": "AMD EPYC 7763, 8 threads", "size": 512, "multiply": 0.5, "copy": 20.0}


def _facts(**slots: list[dict[str, Any]] | None) -> Facts:
    """The facts of a check that measured these slots by node; None for a node without a GPU."""
    answers = {
        name: CommandOutput(code=0, stdout="" if each is None else json.dumps({"torch": True, "slots": each}))
        for name, each in slots.items()
    }
    return Facts(
        cluster=Cluster(nodes=tuple(Node(name=name) for name in slots)),
        contacts={},
        answers={SPEED.name: {name: parse_answer(SPEED, answer) for name, answer in answers.items()}},
    )


def _judge(**slots: list[dict[str, Any]] | None) -> list[Finding]:
    return SUBJECT.judge(_facts(**slots))


def test_a_slow_gpu_is_named_with_the_usual_rate() -> None:
    """And only that one; a few percent are usual, and so is a link that crosses the sockets."""
    alike = [{**H100, "multiply": 712.0 - number, "to_device": 55.0 - 2 * number} for number in range(8)]
    slow = [*alike[:3], {**H100, "multiply": 424.0}, *alike[4:]]
    assert _judge(n1=alike, n2=alike) == []
    (found,) = _judge(n1=alike, n2=slow)
    assert (found.code, found.severity, found.nodes) == ("compute-slow", Severity.WARN, ("n2",))
    assert found.seen.startswith(
        "GPU 3: matrix multiplication at 424 TFLOP/s, 60% of the usual 708 TFLOP/s of 16 slots"
    )
    assert "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER    # on n2" in str(found.fix)


@pytest.mark.parametrize(("measure", "words"), [("copy", "memory copy"), ("from_device", "copy from device to host")])
def test_a_slow_copy_is_named(measure: str, words: str) -> None:
    """A degraded memory or a link with half of its lanes."""
    (found,) = _judge(n1=[H100] * 4, n2=[H100, {**H100, measure: H100[measure] / 2}])  # type: ignore[operator]
    assert found.seen.startswith(f"GPU 1: {words} at ")


def test_a_gpu_that_is_slow_in_several_ways_is_one_finding() -> None:
    """With each of its rates, and one fix: low clocks slow down everything that it does."""
    (found,) = _judge(n1=[H100] * 4, n2=[H100, {**H100, "multiply": 356.0, "copy": 1205.0}])
    assert found.seen == (
        "GPU 1: matrix multiplication at 356 TFLOP/s, 50% of the usual 712 TFLOP/s; memory copy at 1,205 GB/s, 50% of"
        " the usual 2,410 GB/s of 6 slots (NVIDIA H100 80GB HBM3)"
    )


def test_kinds_and_sizes_are_not_compared_with_each_other() -> None:
    """Nor is a kind that has one slot."""
    other = {**H100, "kind": "NVIDIA A100-SXM4-80GB", "multiply": 250.0}
    assert _judge(n1=[H100, H100, other], n2=[CPU]) == []


def test_of_two_nodes_that_differ_the_slower_one_is_named() -> None:
    """Ranks would wait for it, whichever is the usual one; a CPU counts as slow below half of the rate."""
    assert _judge(n1=[CPU], n2=[{**CPU, "multiply": 0.3}]) == []
    (found,) = _judge(n1=[CPU], n2=[{**CPU, "multiply": 0.2}])
    assert (found.nodes, found.seen.split(":")[0]) == (("n2",), "the CPU")


def test_a_gpu_in_use_is_not_measured_and_one_that_fails_is_named() -> None:
    """Neither is compared; a node without a GPU is measured only when asked for."""
    busy = {"kind": H100["kind"], "why": "71.3 GiB of its memory are in use"}
    broken = {"kind": H100["kind"], "why": "AcceleratorError: CUDA error: uncorrectable ECC error encountered"}
    facts = _facts(n1=[busy, H100], n2=[H100, broken], n3=None)
    assert list_unmeasured_nodes(facts) == {
        "n1": "GPU 0: 71.3 GiB of its memory are in use",
        "n3": "no GPU; `aboard check --only compute` measures CPUs, too",
    }
    (found,) = SUBJECT.judge(facts)
    assert (found.code, found.nodes) == ("compute-failed", ("n2",))
    assert "slot 1 (NVIDIA H100 80GB HBM3): AcceleratorError" in found.seen


def test_a_measurement_that_hangs_is_unknown() -> None:
    """A lost GPU can make CUDA hang: that is no pass."""
    late = parse_answer(SPEED, CommandOutput(code=0, stdout="", timed_out=True))
    facts = Facts(cluster=Cluster(nodes=(Node(name="n1"),)), contacts={}, answers={SPEED.name: {"n1": late}})
    assert [each.code for each in SUBJECT.judge(facts)] == ["unknown-compute-speed"]


def test_a_launch_measures_nothing() -> None:
    """The full check measures GPUs, and only --only compute CPUs."""
    assert not any(probe.quick for probe in SUBJECT.probes)
    question, asked = (each.probes[0].question_for(Node(name="n1")) for each in (SUBJECT, build_subject(cpus=True)))
    assert isinstance(question, ProbeCommand)
    assert isinstance(asked, ProbeCommand)
    assert "/proc/driver/nvidia/version" in question.argv[2]
    assert not any("/proc/driver/nvidia/version" in word for word in asked.argv)
    assert question.timeout == asked.timeout == 30


# -- dcgmi: written after its documentation, not recorded ------------------------------------------------------------

THREE = {
    "DCGM GPU Diagnostic": {
        "test_categories": [
            {
                "category": "Deployment",
                "tests": [
                    {"name": "Denylist", "results": [{"status": "Pass"}]},
                    {
                        "name": "Page Retirement/Row Remap",
                        "results": [
                            {"gpu_ids": "3", "status": "Fail", "warnings": "GPU 3 has a pending row remapping"}
                        ],
                    },
                ],
            }
        ]
    }
}
FOUR = {
    "DCGM Diagnostic": {
        "test_categories": [
            {
                "category": "Deployment",
                "tests": [
                    {
                        "name": "software",
                        "results": [
                            {"entity_group": "GPU", "entity_id": 0, "status": "Pass"},
                            {
                                "entity_group": "GPU",
                                "entity_id": 3,
                                "status": "Fail",
                                "warnings": [{"error_id": 5, "warning": "Persistence mode is disabled"}],
                            },
                        ],
                    }
                ],
            }
        ]
    }
}


@pytest.mark.parametrize(
    ("report", "failed"),
    [
        (THREE, "Page Retirement/Row Remap, GPU 3: GPU 3 has a pending row remapping"),
        (FOUR, "software, GPU 3: Persistence mode is disabled"),
    ],
)
def test_dcgm_names_what_failed(report: dict[str, Any], failed: str) -> None:
    """In the report of either version, with the GPU and the reason."""
    answer = parse_answer(DCGM, CommandOutput(code=226, stdout=f"Successfully ran\n{json.dumps(report)}\n"))
    assert answer == DcgmReport(ran=True, failed=(failed,))
    facts = Facts(cluster=Cluster(nodes=(Node(name="n1"),)), contacts={}, answers={DCGM.name: {"n1": answer}})
    (found,) = SUBJECT.judge(facts)
    assert (found.code, found.seen) == ("compute-dcgm", failed)


def test_dcgm_that_is_missing_or_does_not_run_is_no_finding() -> None:
    """It is optional; a report that can't be read is unknown."""
    missing = parse_dcgm(CommandOutput(code=127, stdout=""))
    off = parse_dcgm(CommandOutput(code=1, stdout="Error: Unable to connect to host engine.\n"))
    assert (missing.why, off.why) == (
        "not run: DCGM is not installed",
        "not run: DCGM's host engine does not run",
    )
    for strange in (CommandOutput(code=0, stdout="fine"), CommandOutput(code=0, stdout="{cut off}")):
        with pytest.raises(ProbeParseError):
            parse_dcgm(strange)
