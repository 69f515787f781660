"""Ranks whose container did not start: the runtime's own message names the cause."""

from collections.abc import Iterable
from typing import TypeAlias

from aboard.core.cluster.container import Container
from aboard.core.cluster.node_sets import fold_names
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_state import RankProcess
from aboard.diagnoses import Finding, Fix, RunFailure, Shell, format_shell, join_fixes
from aboard.diagnoses.catalogue import list_output_patterns
from aboard.diagnoses.fixes import Value, list_blanks
from aboard.diagnoses.output_patterns import OutputPattern, PatternSource
from aboard.diagnoses.runs import death
from aboard.diagnoses.untrusted import Untrusted, escape_text
from aboard.doctor.container import diagnoses as containers, image_diagnoses as container_images
from aboard.lazy_dataclass import dataclass

_SHOWN = 300
_Refusal: TypeAlias = tuple[RunFailure, OutputPattern]


@dataclass(frozen=True, kw_only=True)
class ContainerRefusal:
    """Why a rank's container did not start: the line of the runtime, and what it names (an image, a path)."""

    child: RankProcess
    container: Container | None
    diagnosis: RunFailure
    message: OutputPattern
    line: Untrusted
    named: dict[str, str]


def find_refusal(evidence: Evidence, process: RankProcess) -> ContainerRefusal | None:
    """The most specific message of a runtime in the output of a rank that died before its program started."""
    starts = (start for part in evidence.plan.parts if part.node.name == process.node for start in part.starts)
    known = list_output_patterns(PatternSource.DEATH, containers, container_images)
    refusals = [(diagnosis, message) for diagnosis, message in known if isinstance(diagnosis, RunFailure)]
    return _match_messages(evidence, process, next((start.container for start in starts), None), refusals)


def build_refusal_finding(evidence: Evidence, refusal: ContainerRefusal) -> Finding[RunFailure]:
    """One finding for all ranks whose runtime printed the same message."""
    messages = ((refusal.diagnosis, refusal.message),)
    dead = sorted(evidence.run.generation.dead, key=lambda child: child.rank)
    same = [
        child
        for child in dead
        if child is refusal.child or _match_messages(evidence, child, refusal.container, messages)
    ]
    nodes = tuple(dict.fromkeys(child.node for child in same))
    who = f"rank {same[0].name} on {nodes[0]}" if len(same) == 1 else f"{len(same)} ranks on {fold_names(nodes)}"
    runtime = refusal.container.runtime if refusal.container is not None else "the container runtime"
    quoted = escape_text(" ".join(refusal.line.raw().split()), _SHOWN)
    logs = death.EXITED.fix("logs", run=evidence.plan.run, rank=same[0].name)
    return refusal.diagnosis.finding(
        nodes=nodes,
        ranks=tuple(child.rank for child in same),
        seen=f'{who} did not start; {runtime} reports: "{quoted}"',
        why=refusal.message.why or None,
        fix=join_fixes(_build_fix(evidence, refusal, nodes), logs),
    )


def _match_messages(
    evidence: Evidence, process: RankProcess, container: Container | None, messages: Iterable[_Refusal]
) -> ContainerRefusal | None:
    if not process.dead or process.raised is not None or process.phase > Phase.STARTED:
        return None
    lines = (process.why,) if process.state == "failed" else evidence.tails.get(process.rank, ())
    for diagnosis, message in messages:
        # The last attempt counts: earlier ones may be retried.
        for line in reversed(lines):
            found = line.match(message.regex)
            named = {name.rstrip("234"): text for name, text in found.groupdict().items() if text} if found else {}
            if found and _is_about_container(diagnosis, message, named, container):
                return ContainerRefusal(
                    child=process, container=container, diagnosis=diagnosis, message=message, line=line, named=named
                )
    return None


def _is_about_container(
    diagnosis: RunFailure, pattern: OutputPattern, named: dict[str, str], container: Container | None
) -> bool:
    """Whether a message of a shell or of the agent is about the run's container; a runtime's own always is."""
    if PatternSource.LOG in pattern.source:
        return True
    missing = diagnosis is containers.NO_RUNTIME
    return container is not None and (not missing or named.get("program") == container.runtime)


def _build_fix(evidence: Evidence, refusal: ContainerRefusal, nodes: tuple[str, ...]) -> Fix:
    """The fix for the run's container; for one that the user's own program starts, the fix for a log."""
    container, diagnosis = refusal.container, refusal.diagnosis
    values: dict[str, Value] = {**refusal.named, "node": nodes[0]}
    variants = [refusal.message.fix, "log", ""]
    if container is not None:
        peers = [part.node.name for part in evidence.plan.parts if part.node.name not in nodes]
        values |= {"runtime": container.runtime, "image": container.image, "nodes": nodes, "peer": "".join(peers[:1])}
        values |= {"enter": _format_entry(container)}
        missing = diagnosis is container_images.IMAGE_MISSING
        variants = [_choose_source(container, peers)] if missing else [refusal.message.fix, ""]
    variant = next(each for each in variants if each in diagnosis.templates)
    blanks = list_blanks(diagnosis.templates[variant])
    return diagnosis.fix(variant, **{name: values.get(name) or name.upper() for name in blanks})


def _choose_source(container: Container, peers: list[str]) -> str:
    """The fix that brings the image: from a registry, from a node whose ranks started, or from this machine."""
    if "://" in container.image:
        return "registry"
    if container.is_apptainer:
        return "copy" if peers else "file"
    return "transfer" if peers else "store"


def _format_entry(container: Container) -> Shell:
    """The words before a program that run it in the container."""
    text = "{runtime} exec {image}" if container.is_apptainer else "{runtime} run --rm {image}"
    return format_shell(text, runtime=container.runtime, image=container.image)
