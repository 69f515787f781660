"""What a run ended of, all in all: what kept it from going on, or whoever was the first to die."""

from dataclasses import replace

from aboard.core.evidence import Evidence
from aboard.diagnoses import Finding
from aboard.verdicts.ending import cause_of, ending, is_echo


def conclude(evidence: Evidence, stall: Finding | None, *, unhurt: bool) -> tuple[Finding, ...]:
    """`stall` is the verdict that stood when it ended; `unhurt` is a run that was ended and did not die."""
    findings = () if unhurt else tuple(ending(evidence))
    cause = cause_of(evidence)
    if stall is not None and (unhurt or (cause is not None and is_echo(evidence, cause))):
        # What kept it from going on is what it ended of, whoever was the first to give up waiting.
        return (replace(stall, consequences=(*stall.consequences, *findings)),)
    return findings
