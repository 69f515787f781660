"""The GPUs that each node was said to have, of the same model and with the same driver everywhere."""

from collections import Counter
from collections.abc import Iterator, Mapping

from aboard.checks.gpu.smi import DRIVER, GPUS
from aboard.checks.listed import listed
from aboard.checks.usual import usual, usual_or_best
from aboard.core.facts import Facts
from aboard.core.node import Node
from aboard.core.nodeset import fold_quoted
from aboard.core.words import many
from aboard.diagnoses import Diagnosis, Finding, gpu, join_fixes


def count_of(facts: Facts) -> dict[str, int]:
    """How many GPUs a program sees on each node; not in it where nvidia-smi could not say."""
    # Without nvidia-smi there are no GPUs only if there is no driver either.
    bare = {name for name, driver in facts.of(DRIVER).items() if not driver.version}
    every = facts.of(GPUS).items()
    return {name: len(smi.gpus) for name, smi in every if not smi.complaint and (smi.installed or name in bare)}


def short_of_gpus(facts: Facts) -> dict[str, Finding]:
    """Two ranks on one GPU, or a rank without one, end the run at its first collective."""
    counts = count_of(facts)
    if not any(counts.values()):
        return {}  # a cluster without any GPU has slots for CPU processes
    expected = usual_or_best(counts, better=int) or 0
    short = {}
    for node in facts.cluster:
        count, wanted = counts.get(node.name), _wanted(node)
        if count is None:
            continue
        if wanted > count:
            short[node.name] = _short(node.name, count, f"{many(count, 'GPU')}, but {many(wanted, 'slot')}")
        elif node.slots is None and count < expected:
            short[node.name] = _short(node.name, count, f"{many(count, 'GPU')}, the others have {expected}")
    return short


def _short(name: str, count: int, seen: str) -> Finding:
    return gpu.COUNT.finding(
        nodes=(name,),
        seen=seen,
        fix=join_fixes(gpu.COUNT.fix("look", node=name), gpu.COUNT.fix("slots", count=count, node=name)),
    )


def _wanted(node: Node) -> int:
    if node.picked is not None:
        return max(node.picked, default=-1) + 1
    return node.slots or 0


def models_differ(facts: Facts) -> Iterator[Finding]:
    """A run is as fast as its slowest GPU, and as large as its smallest memory allows."""
    models = {
        name: tuple(card.model.visible() for card in smi.gpus) for name, smi in facts.of(GPUS).items() if smi.gpus
    }
    kinds = {name: tuple(sorted(set(kind))) for name, kind in models.items()}
    yield from _odd_ones(kinds, gpu.MODEL, what="GPUs")
    for name, kind in kinds.items():
        if len(kind) > 1:
            counts = Counter(models[name])
            yield gpu.MODEL.finding(
                nodes=(name,),
                seen="GPUs of several models: " + listed([f"{count} × {model}" for model, count in counts.items()]),
                fix=gpu.MODEL.fix("several", node=name),
            )


def drivers_differ(facts: Facts) -> Iterator[Finding]:
    """Another driver is another CUDA: what runs on one node may not even start on the next."""
    versions = {name: driver.version for name, driver in facts.of(DRIVER).items() if driver.version}
    yield from _odd_ones({name: (version,) for name, version in versions.items()}, gpu.DRIVER, what="driver")


def _odd_ones(values: Mapping[str, tuple[str, ...]], diagnosis: Diagnosis, *, what: str) -> Iterator[Finding]:
    """One finding for each node that differs from most; one for all when there is no most."""
    if len(set(values.values())) <= 1:
        return
    most = usual(values)
    shown = {name: " and ".join(value) for name, value in values.items()}
    if most is None:
        seen = f"{what}: " + listed([f"{name} has {text}" for name, text in shown.items()])
        names = tuple(values)
        yield diagnosis.finding(nodes=names, seen=seen, fix=diagnosis.fix("odd", where=fold_quoted(names)))
        return
    for name, value in values.items():
        if value != most:
            seen = f"{what}: {shown[name]}, on the others {' and '.join(most)}"
            yield diagnosis.finding(nodes=(name,), seen=seen, fix=diagnosis.fix("odd", where=fold_quoted([name])))
