"""What nvidia-smi and `nvidia-smi -q` say of a node's GPUs, judged by the rules of `aboard check`."""

import re
from collections.abc import Iterator
from typing import Any

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
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
_ROW = re.compile(
    r"^\|\s{1,9}(?P<index>\d{1,4})\s{1,9}(?P<model>\S.{0,60}?)\s+(?:On|Off|N/A)?\s*\|"
    r"\s{1,20}(?P<bus>[0-9A-Fa-f]{8}:[0-9A-Fa-f:.]{1,12})\s[^|]{0,60}\|\s{0,40}(?P<ecc>\S{1,20})\s{0,40}\|$\n(?P<second>.{0,200})",
    re.MULTILINE,
)
_FIELD = r"^ +{} +: (.{{1,80}}?)\s*$"
# By the sections of a GPU: its volatile counters come before those of all its life.
_UNCORRECTED = re.compile(r"Volatile$((?:\n {12}.*)+)", re.MULTILINE)
_COUNT = re.compile(r"(?:Uncorrectable|Double Bit|Total)[^:\n]*: (\d{1,18})$", re.MULTILINE)


def judge_gpu_table(text: str, node: str) -> Iterator[tuple[Finding, None]]:
    """From the table: memory errors, and a GPU that shows ERR! in place of a value."""
    rows = list(_ROW.finditer(text))
    gpus = tuple(_make_gpu(row["index"], row["bus"], row["ecc"]) for row in rows)
    bad = [row["index"] for row in rows if "ERR!" in row[0]]
    seen = f"nvidia-smi shows ERR! for GPU {', '.join(bad[:8])} in place of its state"
    why = "The driver gets no answer from the GPU: it hangs, or has fallen off the bus."
    broken = gpu.SMI.finding(nodes=(node,), seen=seen, why=why, fix=gpu.SMI.fix(node=node))
    yield from ((each, None) for each in (*([broken] if bad else []), *health.find_ecc_errors(_make_facts(node, gpus))))


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
