"""CUDA_VISIBLE_DEVICES: the GPUs that a shell's start-up file or aboard.yaml hides from ranks."""

import re
from collections.abc import Iterator

from aboard.core.cluster.node import Node
from aboard.core.cluster.setup_commands import prepend_setup
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeCommand
from aboard.core.text.input_text import format_count
from aboard.diagnoses import NO_FIX, Finding, Fix, join_fixes
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.gpu import diagnoses as gpu
from aboard.doctor.gpu.count_and_model_parity import count_gpus
from aboard.doctor.shared.answer_text import extract_stdout
from aboard.doctor.shared.fix_values import quote_yaml

VARIABLE = "CUDA_VISIBLE_DEVICES"
_ALL = "all"
_LONGEST = 400
_SCRIPT = f'echo "${{{VARIABLE}-{_ALL}}}"'


def parse_visible_devices(answer: ProbeAnswer) -> Untrusted | None:
    """The variable's value in a rank; None when it isn't set and all GPUs are visible."""
    value = extract_stdout(answer).strip()
    return None if value == _ALL else Untrusted(value[:_LONGEST])


def count_visible_gpus(value: Untrusted, count: int) -> int:
    """How many of `count` GPUs it leaves: CUDA stops at the first entry that is invalid or repeated."""
    entries: list[str] = []
    for entry in (word.strip() for word in value.raw().split(",")):
        is_gpu = entry.startswith(("GPU-", "MIG-")) or (re.fullmatch("[0-9]{1,9}", entry) and int(entry) < count)
        if not is_gpu or entry in entries:
            break
        entries.append(entry)
    return len(entries)


def find_hidden_gpus(facts: Facts) -> Iterator[Finding]:
    """Ranks that see fewer GPUs than there are ranks share one or find none."""
    values, counts = facts.of(VISIBLE), count_gpus(facts)
    for node in facts.cluster:
        value = Untrusted(node.env[VARIABLE]) if VARIABLE in node.env else values.get(node.name)
        count = counts.get(node.name, 0)
        # With slots picked, the run sets the variable itself, unless aboard.yaml does.
        if value is None or not count or node.container or (node.picked is not None and VARIABLE not in node.env):
            continue
        required, visible_count = (
            count if node.slots is None else min(node.slots, count),
            count_visible_gpus(value, count),
        )
        if visible_count < required:
            yield gpu.HIDDEN.finding(
                nodes=(node.name,),
                seen=f"{VARIABLE}={value.visible() or 'nothing'} leaves {visible_count} of {format_count(count, 'GPU')}"
                f" for {format_count(required, 'rank')}",
                fix=_fix_hidden_gpus(node, visible_count, count),
            )


def _fix_hidden_gpus(node: Node, visible_count: int, count: int) -> Fix:
    every = quote_yaml(",".join(map(str, range(count))))
    return join_fixes(
        gpu.HIDDEN.fix("ours", gpus=every, node=node.name)
        if VARIABLE in node.env
        else join_fixes(gpu.HIDDEN.fix("look", node=node.name), gpu.HIDDEN.fix("set", gpus=every, node=node.name)),
        gpu.HIDDEN.fix("slots", left=visible_count, node=node.name) if visible_count else NO_FIX,
    )


def _build_command(node: Node) -> ProbeCommand:
    return ProbeCommand(argv=prepend_setup(node, ("sh", "-c", _SCRIPT)))


VISIBLE = Probe(name="visible-gpus", question=_build_command, parse=parse_visible_devices)
