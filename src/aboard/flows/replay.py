"""A run judged again from what is kept of it, by the rules of this version, in the way in which it was judged live."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from aboard.core.event import Event
from aboard.core.evidence import Evidence
from aboard.core.look import Look
from aboard.core.run import Run
from aboard.core.verdict import Replayed, RuledOut, Why, same_verdict
from aboard.core.words import visible
from aboard.diagnoses import Finding, Fix, Severity, death, logs
from aboard.flows.kept import Kept, LogLine
from aboard.flows.parts import LOGS
from aboard.record.documents import decode_findings
from aboard.verdicts.death.earliest import cause_of, is_echo
from aboard.verdicts.death.rules import conclude
from aboard.verdicts.judge import judge
from aboard.verdicts.logs.judge import judge as judge_logs
from aboard.verdicts.logs.reader import Reader

_MOST_TEXT = 20_000
# Verdicts that a rank's own words may say more of.
_GENERAL = (death.RAISED.code, death.EXITED.code, death.KILLED.code)


def replay(kept: Kept) -> Replayed:
    folded = Run.replay(kept.run, kept.events)
    over = folded.finished is not None or folded.generation.ending is not None
    standing = _standing(kept)
    if standing is not None and not over:
        return _replayed(kept, _looked(kept, standing), standing.findings, standing.version)
    stall, ruled_out = _stall(kept)
    unhurt = _unhurt(kept, folded) if over else stall is not None
    evidence = _end(kept, folded) if kept.plan is not None else None
    end = conclude(evidence, stall, unhurt=unhurt) if evidence is not None else Why()
    findings = list(end.findings or (() if kept.looks else kept.findings))
    if not findings:
        findings = [each for each in _of_logs(kept.lines) if each.severity > Severity.INFO]
    elif findings[0].code in _GENERAL:
        findings = _with_words(kept, findings, evidence)
    version = kept.looks[-1].version if kept.looks else ""
    why = Why(findings=tuple(findings), ruled_out=(*ruled_out, *end.ruled_out))
    return _replayed(kept, why, kept.findings, version)


def _standing(kept: Kept) -> Look | None:
    """The last look of a run that is not over, unless it has moved since."""
    looks = [look for look in kept.looks if not look.ended]
    if not looks or any(_is_withdrawal(event) for event in _around(kept, looks[-1])[1]):
        return None
    return looks[-1]


def _stall(kept: Kept) -> tuple[Finding | None, tuple[RuledOut, ...]]:
    """The verdict that stood when the run ended, judged again; as it was told, where its look was not kept."""
    events = [event for event in kept.events if event.kind == "verdict"]
    told = _told(events[-1], own=kept.own) if events else None
    if told is None:
        return None, ()
    looks = [look for look in kept.looks if not look.ended and look.findings and same_verdict(look.findings[0], told)]
    if not looks:
        return told, ()
    why = _looked(kept, looks[-1])
    first = why.findings[0] if why.findings and why.findings[0].severity > Severity.INFO else None
    return first, why.ruled_out


def _looked(kept: Kept, look: Look) -> Why:
    return judge(look.evidence(Run.replay(kept.run, _around(kept, look)[0]), kept.tails()))


def _around(kept: Kept, look: Look) -> tuple[Sequence[Event], Sequence[Event]]:
    """The events before a look and those after it; where its mark is missing, by the clock."""
    for place, event in enumerate(kept.events):
        if event.kind == "looked" and event.data.get("number") == look.number:
            return kept.events[:place], kept.events[place + 1 :]
    before = [event for event in kept.events if event.at <= look.at]
    return before, [event for event in kept.events if event.at > look.at]


def _end(kept: Kept, run: Run) -> Evidence:
    """What the end is judged by: the last look, when a rank had died, if there was one."""
    last = kept.looks[-1] if kept.looks else None
    if last is not None and last.ended:
        return last.evidence(run, kept.tails())
    plan = last.plan if last is not None else kept.plan
    assert plan is not None  # noqa: S101 - asked by the caller
    return Evidence(plan=plan, run=run, tails=kept.tails())


def _unhurt(kept: Kept, run: Run) -> bool:
    decided = [event for event in kept.events if event.kind == "deciding"]
    told = decided[-1].data.get("unhurt") if decided else None
    # Earlier versions did not tell.
    return told if isinstance(told, bool) else bool(run.stopping)


def _is_withdrawal(event: Event) -> bool:
    return event.kind == "verdict" and _told(event, own=False) is None


def _told(event: Event, *, own: bool) -> Finding | None:
    return next(iter(decode_findings(event.data.get("findings"), own=own)), None)


def _with_words(kept: Kept, findings: list[Finding], evidence: Evidence | None) -> list[Finding]:
    """The findings with what the logs say besides.

    A rank that died by itself is explained by its own words alone: the errors of others follow from its death. They are
    a finding of their own only where the verdict has no other fix than to read the log.
    """
    first, *rest = findings
    known = {finding.code for finding in findings}
    cause = cause_of(evidence) if evidence is not None else None
    by_itself = evidence is not None and cause is not None and not is_echo(evidence, cause)
    own = [line for line in kept.lines if line.rank in first.ranks] if by_itself else kept.lines
    told = [each for each in _of_logs(own) if each.severity is Severity.BLOCK and each.code not in known]
    odd = [each for each in _of_logs(kept.lines) if each.severity is Severity.WARN and each.code not in known]
    if first.code == death.RAISED.code and "\n" in first.fix:
        # The verdict has a fix for the exception: the words of its ranks only repeat it.
        under, told = [], []
    elif first.code == death.EXITED.code or "\n" in first.fix:
        # Nothing says that a rank exited, or was killed, because of what it had said before.
        under, told = told, []
    else:
        under = [each for each in told if each.code == logs.PEER_LOST.code]
        told = [each for each in told if each.code != logs.PEER_LOST.code]
    folded = (replace(each, severity=Severity.INFO) for each in under)
    return [replace(first, consequences=(*first.consequences, *folded)), *rest, *told, *odd]


def _of_logs(lines: Iterable[LogLine]) -> list[Finding]:
    reader = Reader()
    reader.begin(LOGS)
    for line in sorted(lines, key=lambda line: line.at):
        reader.take(f"{line.node}: [rank{line.rank}]: {line.text.raw()}".encode("utf-8", "backslashreplace"))
    return judge_logs(reader.reading())


def _replayed(kept: Kept, why: Why, then: tuple[Finding, ...], version: str) -> Replayed:
    """Its words are shown at a terminal, and some come from whoever packed it."""
    shown = replace(
        why,
        findings=tuple(map(_shown, why.findings)),
        ruled_out=tuple(RuledOut(what=_text(each.what), why=_text(each.why)) for each in why.ruled_out),
    )
    return Replayed(run=visible(kept.run), why=shown, then=tuple(map(_shown, then)), version=visible(version))


def _shown(finding: Finding) -> Finding:
    return replace(
        finding,
        nodes=tuple(map(_text, finding.nodes)),
        seen=_text(finding.seen),
        why=_text(finding.why),
        fix=Fix(_text(finding.fix)),
        about=tuple(map(_text, finding.about)),
        consequences=tuple(map(_shown, finding.consequences)),
    )


def _text(value: str) -> str:
    """Words that a terminal can be given: on lines, without what it would obey."""
    return "\n".join(visible(line, _MOST_TEXT) for line in value[:_MOST_TEXT].splitlines())
