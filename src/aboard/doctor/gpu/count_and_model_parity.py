"""The number of GPUs that each node needs, of the same model and with the same driver everywhere."""

from collections import Counter
from collections.abc import Iterator, Mapping

from aboard.core.cluster.node import Node
from aboard.core.cluster.node_sets import quote_folded_names
from aboard.core.probes.facts import Facts
from aboard.core.text.input_text import format_count, format_list
from aboard.diagnoses import Diagnosis, Finding, join_fixes
from aboard.doctor.gpu import diagnoses as gpu
from aboard.doctor.gpu.nvidia_smi import DRIVER, GPUS
from aboard.doctor.shared.majority import find_majority, find_most_common


def count_gpus(facts: Facts) -> dict[str, int]:
    """How many GPUs a program sees, by node; nodes where nvidia-smi failed are left out."""
    # Without nvidia-smi there are no GPUs only if there is no driver either.
    bare = {name for name, driver in facts.of(DRIVER).items() if not driver.version}
    every = facts.of(GPUS).items()
    return {name: len(smi.gpus) for name, smi in every if not smi.complaint and (smi.installed or name in bare)}


def find_missing_gpus(facts: Facts) -> dict[str, Finding]:
    """Two ranks on one GPU, or a rank without one, fail at the first collective."""
    counts = count_gpus(facts)
    if not any(counts.values()):
        return {}  # a cluster without any GPU has slots for CPU processes
    expected = find_most_common(counts, better=int) or 0
    short = {}
    for node in facts.cluster:
        count, required = counts.get(node.name), _count_required_gpus(node)
        if count is None:
            continue
        if required > count:
            short[node.name] = _build_count_finding(
                node.name, count, f"{format_count(count, 'GPU')}, but {format_count(required, 'slot')}"
            )
        elif node.slots is None and count < expected:
            short[node.name] = _build_count_finding(
                node.name, count, f"{format_count(count, 'GPU')}; the other nodes have {expected}"
            )
    return short


def _build_count_finding(name: str, count: int, seen: str) -> Finding:
    return gpu.COUNT.finding(
        nodes=(name,),
        seen=seen,
        fix=join_fixes(gpu.COUNT.fix("look", node=name), gpu.COUNT.fix("slots", count=count, node=name)),
    )


def _count_required_gpus(node: Node) -> int:
    if node.picked is not None:
        return max(node.picked, default=-1) + 1
    return node.slots or 0


def find_differing_models(facts: Facts) -> Iterator[Finding]:
    """A run is as fast as its slowest GPU, and as large as its smallest memory allows."""
    models = {
        name: tuple(card.model.visible() for card in smi.gpus) for name, smi in facts.of(GPUS).items() if smi.gpus
    }
    kinds = {name: tuple(sorted(set(kind))) for name, kind in models.items()}
    yield from _find_odd_nodes(kinds, gpu.MODEL, what="GPUs")
    for name, kind in kinds.items():
        if len(kind) > 1:
            counts = Counter(models[name])
            yield gpu.MODEL.finding(
                nodes=(name,),
                seen="GPUs of several models: "
                + format_list([f"{count} × {model}" for model, count in counts.items()]),
                fix=gpu.MODEL.fix("several", node=name),
            )


def find_differing_drivers(facts: Facts) -> Iterator[Finding]:
    """A different driver is a different CUDA: a program that runs on one node may not start on another."""
    versions = {name: driver.version for name, driver in facts.of(DRIVER).items() if driver.version}
    yield from _find_odd_nodes({name: (version,) for name, version in versions.items()}, gpu.DRIVER, what="driver")


def _find_odd_nodes(values: Mapping[str, tuple[str, ...]], diagnosis: Diagnosis, *, what: str) -> Iterator[Finding]:
    """One finding for each node that differs from the majority; one for all without a majority."""
    if len(set(values.values())) <= 1:
        return
    most = find_majority(values)
    texts = {name: " and ".join(value) for name, value in values.items()}
    if most is None:
        seen = f"{what}: " + format_list([f"{name} has {text}" for name, text in texts.items()])
        names = tuple(values)
        yield diagnosis.finding(nodes=names, seen=seen, fix=diagnosis.fix("odd", where=quote_folded_names(names)))
        return
    for name, value in values.items():
        if value != most:
            seen = f"{what}: {texts[name]}; the other nodes have {' and '.join(most)}"
            yield diagnosis.finding(
                nodes=(name,), seen=seen, fix=diagnosis.fix("odd", where=quote_folded_names([name]))
            )
