"""Classifies how a generation failed, from its verdict and the evidence, for the decision what to do about it."""

from collections.abc import Sequence

from aboard.core.evidence.run_evidence import Evidence
from aboard.core.run.recovery.recovery_policy import Failure
from aboard.core.run.run_state import RankProcess
from aboard.diagnoses import Finding, RunFailure
from aboard.diagnoses.catalogue import read_error
from aboard.diagnoses.failure_class import FailureClass
from aboard.diagnoses.runs import death
from aboard.doctor.death.first_death import find_first_death, is_echo, read_last_words

# The share of a node's memory from which on its ranks are to blame for its end.
_OWN_SHARE = 0.5
_SIGNATURE_CHARS = 400
_OF_A_RANK = (death.RAISED, death.EXITED)


def classify_end(evidence: Evidence, findings: Sequence[Finding]) -> Failure:
    """The failure of the current generation."""
    run, cause = evidence.run, find_first_death(evidence)
    kind, code = _classify(evidence, findings, cause)
    return Failure(
        kind=kind,
        code=code,
        nodes=findings[0].nodes if findings else (),
        signature=_build_signature(evidence, cause),
        checkpoint=int(run.metrics.get("saved", 0)),
    )


def _classify(evidence: Evidence, findings: Sequence[Finding], cause: RankProcess | None) -> tuple[FailureClass, str]:
    """The class, and the code that decided it: an error of our own trainer has a more exact one than the verdict."""
    if not findings:
        return FailureClass.UNKNOWN, ""
    finding = findings[0]
    failure, variant = finding.diagnosis, finding.fix.variant
    if failure in _OF_A_RANK and cause is not None:
        if own := _find_own_error(evidence, cause):
            failure, variant = own, ""
        elif is_echo(evidence, cause):
            # A connection was lost, and nobody is known who lost it.
            return FailureClass.TRANSIENT, failure.code
    if not isinstance(failure, RunFailure):
        # No cause was found, or it is on record from another version.
        return FailureClass.UNKNOWN, failure.code
    kind = failure.classify(
        variant,
        everywhere=set(finding.nodes) >= {part.node.name for part in evidence.plan.parts},
        shared_disk=_is_same_disk(evidence),
        own_memory=any(_has_own_memory(evidence, node) for node in finding.nodes),
    )
    return kind, failure.code


def _build_signature(evidence: Evidence, cause: RankProcess | None) -> str:
    words = read_last_words(evidence, cause).raw()[:_SIGNATURE_CHARS] if cause is not None else ""
    return f"{evidence.run.step} {cause.code if cause is not None else ''} {words}"


def _find_own_error(evidence: Evidence, cause: RankProcess) -> RunFailure | None:
    """The diagnosis of the error with which our own trainer ended; None for any other program."""
    if cause.raised is None or not evidence.plan.code:
        return None
    error = read_error(cause.raised.error.raw())
    return error.diagnosis if error is not None and isinstance(error.diagnosis, RunFailure) else None


def _has_own_memory(evidence: Evidence, node: str) -> bool:
    """Whether the ranks of a node used most of what it has, or of what their cgroup may use."""
    seen = evidence.snapshots.get(node)
    total = (seen.limit or seen.memory) if seen is not None else None
    ranks = [sample for (name, child), sample in evidence.run.samples.items() if name == node and child]
    return bool(total) and sum(sample.values.get("rss", 0) for sample in ranks) > _OWN_SHARE * (total or 0)


def _is_same_disk(evidence: Evidence) -> bool:
    """Whether several nodes report the same full disk: equal size and free space at the same path."""
    places = [
        (disk.path, disk.size, disk.free)
        for seen in evidence.snapshots.values()
        for disk in seen.disks
        if disk.size and (disk.free == 0 or disk.inodes == 0)
    ]
    return len(places) > len(set(places))
