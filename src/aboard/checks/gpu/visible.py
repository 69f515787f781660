"""CUDA_VISIBLE_DEVICES: what a shell's start-up file or aboard.yaml hides from ranks, of the GPUs that are there."""

import re
from collections.abc import Iterator

from aboard.checks.answer import printed
from aboard.checks.blanks import yaml_text
from aboard.checks.gpu.parity import count_of
from aboard.core.facts import Facts
from aboard.core.node import Node
from aboard.core.probe import Answer, Command, Probe
from aboard.core.setup import after_setup
from aboard.core.words import many
from aboard.diagnoses import NO_FIX, Finding, Fix, gpu, join_fixes
from aboard.diagnoses.untrusted import Untrusted

NAME = "CUDA_VISIBLE_DEVICES"
_ALL = "all"
_LONGEST = 400
_SCRIPT = f'echo "${{{NAME}-{_ALL}}}"'


def parse_visible(answer: Answer) -> Untrusted | None:
    """What the variable holds in a rank; None where it isn't set, and all GPUs are seen."""
    value = printed(answer).strip()
    return None if value == _ALL else Untrusted(value[:_LONGEST])


def shown(value: Untrusted, count: int) -> int:
    """How many of `count` GPUs it leaves: CUDA reads it up to the first entry that is no GPU, or that comes again."""
    seen: list[str] = []
    for entry in (word.strip() for word in value.raw().split(",")):
        known = entry.startswith(("GPU-", "MIG-")) or (re.fullmatch("[0-9]{1,9}", entry) and int(entry) < count)
        if not known or entry in seen:
            break
        seen.append(entry)
    return len(seen)


def gpus_hidden(facts: Facts) -> Iterator[Finding]:
    """Ranks that see fewer GPUs than there are ranks share one, or find none."""
    asked, counts = facts.of(VISIBLE), count_of(facts)
    for node in facts.cluster:
        value = Untrusted(node.env[NAME]) if NAME in node.env else asked.get(node.name)
        count = counts.get(node.name, 0)
        # With slots picked, the run sets the variable itself, unless aboard.yaml does.
        if value is None or not count or node.container or (node.picked is not None and NAME not in node.env):
            continue
        wanted, left = count if node.slots is None else min(node.slots, count), shown(value, count)
        if left < wanted:
            yield gpu.HIDDEN.finding(
                nodes=(node.name,),
                seen=f"{NAME}={value.visible() or 'nothing'} leaves {left} of {many(count, 'GPU')}"
                f" to {many(wanted, 'rank')}",
                fix=_mend(node, left, count),
            )


def _mend(node: Node, left: int, count: int) -> Fix:
    every = yaml_text(",".join(map(str, range(count))))
    return join_fixes(
        gpu.HIDDEN.fix("ours", gpus=every, node=node.name)
        if NAME in node.env
        else join_fixes(gpu.HIDDEN.fix("look", node=node.name), gpu.HIDDEN.fix("set", gpus=every, node=node.name)),
        gpu.HIDDEN.fix("slots", left=left, node=node.name) if left else NO_FIX,
    )


def _ask(node: Node) -> Command:
    return Command(argv=after_setup(node, ("sh", "-c", _SCRIPT)))


VISIBLE = Probe(name="visible-gpus", question=_ask, parse=parse_visible)
