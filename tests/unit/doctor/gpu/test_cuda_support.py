"""Whether torch can use a node's GPUs, judged from torch's version.py and the driver's own answers."""

import json
from typing import Any

import pytest

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import CommandOutput, FileContents, ProbeParseError
from aboard.diagnoses import Finding
from aboard.doctor.gpu.cuda_support import CUDA, find_unusable_gpus, parse_cuda_support
from aboard.doctor.gpu.nvidia_smi import DRIVER, GPUS, NvidiaSmiOutput, parse_gpus
from aboard.doctor.gpu.subject import SUBJECT

FINE = {"torch": "2.13.0+cu130", "cuda": "13.0", "supported": 13000, "code": 0, "devices": 8}
MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr  8 12:41:17 UTC 2025\n"


def judge(
    *answers: dict[str, Any] | None, cards: int = 8, smi: NvidiaSmiOutput | None = None, **node: Any
) -> dict[str, Finding]:
    """Nodes n1, n2, … with these answers; None is a node without the driver."""
    nodes = tuple(Node(name=f"n{number}", python="/venv/bin/python", **node) for number in range(1, len(answers) + 1))
    drivers: dict[str, Any] = {}
    support: dict[str, Any] = {}
    for each, answer in zip(nodes, answers, strict=True):
        files = {f"/proc/driver/nvidia/gpus/{number}/information": "" for number in range(cards)}
        driver = {} if answer is None else {"/proc/driver/nvidia/version": MODULE, **files}
        said = CommandOutput(code=0, stdout="" if answer is None else f"a banner\n{json.dumps(answer)}\n")
        drivers[each.name], support[each.name] = DRIVER.parse(FileContents(files=driver)), CUDA.parse(said)
    known: dict[str, dict[str, Any]] = {DRIVER.name: drivers, CUDA.name: support}
    if smi is not None:
        known[GPUS.name] = {each.name: smi for each in nodes}
    return find_unusable_gpus(Facts(cluster=Cluster(nodes=nodes), contacts={}, answers=known))


def test_a_torch_that_can_use_the_gpus_yields_nothing() -> None:
    """Also one for an older CUDA, one for a newer minor version, which the driver supports, and one for ROCm."""
    older, minor = {**FINE, "cuda": "12.8"}, {**FINE, "cuda": "13.2"}
    rocm = {"torch": "2.13.0+rocm7.1", "hip": "7.1", "error": "libcuda.so.1: cannot open shared object file"}
    assert judge(FINE, older, minor, rocm, None, {}) == {}


def test_a_cpu_build_on_a_node_with_gpus_is_named_with_the_build_to_install() -> None:
    """With the driver, the newest CUDA that it supports, and the index that has such a torch."""
    cpu = {"torch": "2.13.0+cpu", "supported": 12040, "code": 0, "devices": 8}
    found = judge(FINE, cpu)
    assert list(found) == ["n2"]
    finding = found["n2"]
    assert finding.code == "gpu-cuda"
    assert finding.seen == "torch 2.13.0+cpu is a CPU build; the driver 550.163.01 supports CUDA up to 12.4"
    assert "-m pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126" in finding.fix
    assert "device: cpu" in finding.fix


def test_a_driver_older_than_torch_s_cuda_is_named_with_both_ways_out() -> None:
    """An older torch, or a newer driver; the major version decides."""
    finding = judge({**FINE, "supported": 12040})["n1"]
    assert (
        finding.seen
        == "torch 2.13.0+cu130 needs a driver for CUDA 13.0; the driver 550.163.01 supports CUDA up to 12.4"
    )
    assert "whl/cu126" in finding.fix
    assert "install NVIDIA driver 580 or newer on n1" in finding.fix


@pytest.mark.parametrize(
    ("model", "supported", "build"),
    [
        ("NVIDIA H100 80GB HBM3", 12040, "cu126"),
        ("NVIDIA H100 80GB HBM3", 13000, "cu130"),
        ("NVIDIA B200", 12080, "cu128"),
        ("NVIDIA GB200", 13020, "cu130"),
        ("Tesla V100-SXM2-32GB", 13000, "cu126"),
        ("NVIDIA A100-SXM4-80GB", 11080, ""),
    ],
)
def test_the_build_to_install_has_kernels_for_the_gpu(model: str, supported: int, build: str) -> None:
    """cu130 has none for Volta, cu126 none for Blackwell; drivers of CUDA 11 have no build that training supports."""
    line = f"0, {model}, GPU-1, 00000000:17:00.0, 550.163.01, 0\n"
    smi = parse_gpus(CommandOutput(code=0, stdout=line))
    finding = judge({"torch": "2.13.0+cpu", "supported": supported, "code": 0, "devices": 8}, smi=smi)["n1"]
    assert (f"/whl/{build}'" in finding.fix) == bool(build)
    assert ("pip install" in finding.fix) == bool(build)
    assert ("install NVIDIA driver 525 or newer on n1, which CUDA 12.x needs" in finding.fix) != bool(build)


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        (
            {"code": 802, "error": "system not yet initialized"},
            "CUDA doesn't start: error 802, system not yet initialized",
        ),
        (
            {"supported": 0, "error": "libcuda.so.1: cannot open"},
            "ranks can't load its library: libcuda.so.1: cannot open",
        ),
    ],
)
def test_a_cuda_that_does_not_start_is_named_with_its_error(answer: dict[str, Any], seen: str) -> None:
    """In the driver's own words, and nothing is to be installed."""
    finding = judge({**FINE, **answer})["n1"]
    assert seen in finding.seen
    assert "nvidia-smi" in finding.fix
    assert "pip install" not in finding.fix


def test_a_slurm_job_without_gpus_uses_cpus_on_purpose() -> None:
    """Its step was started without any."""
    assert judge({"torch": "2.13.0+cpu"}, step_options=("--gres=none",)) == {}


def test_a_driver_that_does_not_answer_is_unknown() -> None:
    """Neither a pass nor a fault of torch."""
    with pytest.raises(ProbeParseError, match="asking the driver timed out"):
        parse_cuda_support(CommandOutput(code=0, stdout="", timed_out=True))
    with pytest.raises(ProbeParseError):
        parse_cuda_support(CommandOutput(code=1, stdout="", stderr="Segmentation fault"))
    assert CUDA in SUBJECT.probes
