"""What nvidia-smi and `nvidia-smi -q` say of a node's GPUs, judged by the rules of `aboard check`."""

import re
from collections.abc import Iterator
from typing import Any

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.decoding import DecodeError
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import CommandOutput
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.gpu import diagnoses as gpu, hardware_health as health
from aboard.doctor.gpu.nvidia_smi import DRIVER, GPUS, HEALTH, Gpu, GpuDriver, NvidiaSmiOutput, parse_health

_RULES = (
    *(health.find_ecc_errors, health.find_throttled_gpus, health.find_unusual_states),
    health.find_fabric_manager_problems,
)
_CELLS = 5
_ROW = re.compile(r"\| {1,9}(\d{1,4}) ")
# By the sections of a GPU: its volatile counters come before those of all its life.
_UNCORRECTED = re.compile(r"Volatile$((?:\n {12}.*)+)", re.MULTILINE)
_COUNT = re.compile(r"(?:Uncorrectable|Double Bit|Total)[^:\n]{0,40}: (\d{1,18})$", re.MULTILINE)


def judge_gpu_table(text: str, node: str) -> Iterator[tuple[Finding, None]]:
    """From the table: memory errors, and a GPU that shows ERR! in place of a value."""
    lines = text.splitlines()
    gpus, bad = [], []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        cells = line.split("|")
        if (found := _ROW.match(line)) and len(cells) == _CELLS and cells[2].split() and cells[3].split():
            gpus.append(_make_gpu(found[1], cells[2].split()[0], cells[3].split()[0]))
            bad += [found[1]] if "ERR!" in line + below else []
    if not gpus:
        raise DecodeError("no GPU in it")
    seen = f"nvidia-smi shows ERR! for GPU {', '.join(bad[:8])} in place of its state"
    why = "The driver gets no answer from the GPU: it hangs, or has fallen off the bus."
    broken = gpu.SMI.finding(nodes=(node,), seen=seen, why=why, fix=gpu.SMI.fix(node=node))
    findings = [*([broken] if bad else []), *health.find_ecc_errors(_make_facts(node, tuple(gpus)))]
    yield from ((each, None) for each in findings)


def judge_gpu_query(text: str, node: str) -> Iterator[tuple[Finding, None]]:
    """From the full report: lost GPUs, memory errors, heat, the NVSwitch fabric, and other states."""
    cards = parse_health(CommandOutput(code=0, stdout=text))
    blocks = re.split(r"^GPU [0-9A-Fa-f]{8}:", text, flags=re.MULTILINE)[1:]
    gpus = tuple(
        _make_gpu(str(index), card.bus, str(_count_uncorrected(block)))
        for index, (card, block) in enumerate(zip(cards, blocks, strict=False))
    )
    facts = _make_facts(node, gpus)
    facts = Facts(cluster=facts.cluster, contacts={}, answers={**facts.answers, HEALTH.name: {node: cards}})
    found = (*health.find_lost_gpus(facts).values(), *(each for rule in _RULES for each in rule(facts)))
    yield from ((each, None) for each in found)


def _count_uncorrected(block: str) -> int:
    found = _UNCORRECTED.search(block)
    return max(map(int, _COUNT.findall(found[1])), default=0) if found else 0


def _make_gpu(index: str, bus: str, uncorrected: str) -> Gpu:
    count = int(uncorrected) if re.fullmatch(r"\d{1,18}", uncorrected) else None
    return Gpu(index=int(index), model=NO_TEXT, uuid=NO_TEXT, bus=Untrusted(bus), driver=NO_TEXT, uncorrected=count)


def _make_facts(node: str, gpus: tuple[Gpu, ...]) -> Facts:
    driver = GpuDriver(version="", cards=len(gpus), switches=0)
    answers: dict[str, dict[str, Any]] = {
        GPUS.name: {node: NvidiaSmiOutput(installed=True, gpus=gpus)},
        DRIVER.name: {node: driver},
    }
    return Facts(cluster=Cluster(nodes=(Node(name=node),)), contacts={}, answers=answers)
