"""Compute: every slot multiplies matrices and copies memory as fast as the others of its kind.

No GPU of ours has been measured, so none of these rules stops a launch.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import median_high
from typing import Annotated

from aboard.core.cluster.node import Node
from aboard.core.decoding import MaxLength
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeCommand
from aboard.core.text.input_text import format_count
from aboard.diagnoses import Finding, join_fixes
from aboard.diagnoses.catalogue import list_diagnoses
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.compute import diagnoses as compute
from aboard.doctor.compute.dcgm_report import DCGM
from aboard.doctor.shared.answer_text import NOT_INSTALLED, require_output
from aboard.doctor.shared.script_probes import build_rank_command, decode_script_output, parse_script_output
from aboard.doctor.shared.unknown_answers import list_unknown_diagnoses, make_unknown_rule
from aboard.lazy_dataclass import dataclass
from aboard.node_scripts.script_source import read_script

# Nodes without GPUs are measured only when asked for: importing torch takes seconds there.
_IF_DRIVER = '[ -e /proc/driver/nvidia/version ] || exit 0; exec "$@"'
_SECONDS = 30.0
# What is slow, as a part of the usual rate. GPUs of a kind differ by a few percent, their links by the CPU socket that
# they are attached to, and CPUs by what else runs on them.
_GPU_LEAST = {"multiply": 0.85, "copy": 0.85, "to_device": 0.7, "from_device": 0.7}
_CPU_LEAST = {"multiply": 0.5, "copy": 0.5}
_WORDS = {
    "multiply": ("matrix multiplication", "TFLOP/s"),
    "copy": ("memory copy", "GB/s"),
    "to_device": ("copy from host to device", "GB/s"),
    "from_device": ("copy from device to host", "GB/s"),
}


@dataclass(frozen=True, kw_only=True)
class SlotSpeed:
    """The rates of one slot, in TFLOP/s and GB/s; None where not measured, and `why` not. `size` is of the matrices."""

    kind: Annotated[Untrusted, MaxLength(200)]
    why: Annotated[Untrusted, MaxLength(300)] = NO_TEXT
    size: int = 0
    multiply: float | None = None
    copy: float | None = None
    to_device: float | None = None
    from_device: float | None = None

    @property
    def is_gpu(self) -> bool:
        return self.to_device is not None

    def describe(self) -> str:
        """Such as "multiply 712 TFLOP/s, copy 2,410 GB/s"."""
        rates = {name: getattr(self, name) for name in _WORDS}
        return ", ".join(
            f"{name.replace('_', ' ')} {_format_rate(rate)} {_WORDS[name][1]}"
            for name, rate in rates.items()
            if rate is not None
        )


@dataclass(frozen=True, kw_only=True)
class NodeSpeed:
    """A node's slots by number; none if torch is missing there or finds no GPU, and why."""

    torch: bool = False
    why: Annotated[Untrusted, MaxLength(300)] = NO_TEXT
    slots: tuple[SlotSpeed, ...] = ()


def parse_speed(answer: ProbeAnswer) -> NodeSpeed | None:
    """None on a node that was not measured, since it has no GPU."""
    output = require_output(answer, "the measurement timed out; a lost GPU can make it hang")
    if output.code == NOT_INSTALLED:
        return NodeSpeed(why=Untrusted("the Python of ranks was not found"))
    if output.code == 0 and not output.stdout.strip():
        return None
    return decode_script_output(NodeSpeed, parse_script_output(answer))


def find_slow_slots(facts: Facts) -> Iterator[Finding]:
    """Against the usual rate of its kind: of two slots that differ, the slower one."""
    speeds = list_slots(facts)
    for (name, number), slot in speeds.items():
        # A lost link to the host is no CPU: all slots of a kind are GPUs or none.
        alike = [other for other in speeds.values() if (other.kind, other.size) == (slot.kind, slot.size)]
        slow = []
        for measure, least in (_GPU_LEAST if slot.is_gpu else _CPU_LEAST).items():
            rate = getattr(slot, measure)
            usual = median_high([getattr(other, measure) or 0.0 for other in alike])
            if rate is not None and rate < least * usual:
                words, unit = _WORDS[measure]
                share = f"{rate / usual:.0%} of the usual {_format_rate(usual)} {unit}"
                slow.append(f"{words} at {_format_rate(rate)} {unit}, {share}")
        if slow:
            yield compute.SLOW.finding(
                nodes=(name,),
                seen=f"{name_slot(slot, number)}: {'; '.join(slow)} of {format_count(len(alike), 'slot')}"
                f" ({slot.kind.visible(100)})",
                fix=compute.SLOW.fix("gpu" if slot.is_gpu else "cpu", node=name),
            )


def find_failed_slots(facts: Facts) -> Iterator[Finding]:
    """Slots that raised an error; busy ones are untested."""
    for name, speed in facts.of(SPEED).items():
        for number, slot in enumerate(() if speed is None else speed.slots):
            if slot.why.raw() and not _is_busy(slot):
                yield compute.FAILED.finding(
                    nodes=(name,),
                    seen=f"slot {number} ({slot.kind.visible(100)}): {slot.why.visible(300)}",
                    fix=compute.FAILED.fix(node=name),
                )


def find_dcgm_faults(facts: Facts) -> Iterator[Finding]:
    """What `dcgmi diag -r 1` reports as failed."""
    for name, report in facts.of(DCGM).items():
        if report.failed:
            yield compute.DCGM.finding(
                nodes=(name,), seen="; ".join(report.failed), fix=join_fixes(compute.DCGM.fix(node=name))
            )


def list_slots(facts: Facts) -> dict[tuple[str, int], SlotSpeed]:
    """The slots that were measured, by node and number."""
    return {
        (name, number): slot
        for name, speed in facts.of(SPEED).items()
        for number, slot in enumerate(() if speed is None else speed.slots)
        if not slot.why.raw()
    }


def name_slot(slot: SlotSpeed, number: int) -> str:
    return f"GPU {number}" if slot.is_gpu else "the CPU"


def list_unmeasured_nodes(facts: Facts) -> dict[str, str]:
    """Nodes without a measurement, or with a GPU in use."""
    found = {}
    for name, speed in facts.of(SPEED).items():
        if speed is None:
            found[name] = "no GPU; `aboard check --only compute` measures CPUs, too"
        elif speed.why.raw():
            found[name] = speed.why.visible(300)
        else:
            busy = (
                f"GPU {number}: {slot.why.visible(100)}" for number, slot in enumerate(speed.slots) if _is_busy(slot)
            )
            if reason := next(busy, ""):
                found[name] = reason
    return found


def _format_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"  # noqa: PLR2004 - three digits


def _is_busy(slot: SlotSpeed) -> bool:
    return slot.why.raw().endswith("of its memory are in use")


def _build_question(node: Node, *, cpus: bool = False) -> ProbeCommand:
    command = build_rank_command(
        node, "-c", read_script("compute_speed"), *([] if cpus else ["gpus"]), timeout=_SECONDS
    )
    words = () if cpus else ("sh", "-c", _IF_DRIVER, "sh")
    return replace(command, argv=(*words, *command.argv))


SPEED = Probe(name="compute-speed", question=_build_question, parse=parse_speed, quick=False)
SUBJECT = Subject(
    name="compute",
    title="slots of a kind compute and copy at the same rate",
    probes=(SPEED, DCGM),
    rules=(find_failed_slots, find_slow_slots, find_dcgm_faults, make_unknown_rule(SPEED, DCGM)),
    diagnoses=(*list_diagnoses(compute), *list_unknown_diagnoses((SPEED, DCGM))),
    untested=list_unmeasured_nodes,
)


def build_subject(*, cpus: bool = False) -> Subject:
    """The subject; with `cpus`, nodes without GPUs are measured, too."""
    speed = replace(SPEED, question=partial(_build_question, cpus=cpus))
    return replace(SUBJECT, probes=(speed, DCGM))
