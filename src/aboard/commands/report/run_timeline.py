"""Folds a run's events into what happened when: attempts, verdicts, checkpoints, and the class of every second."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import field
from typing import Any, cast

from aboard.commands.report.page_data import Verdict
from aboard.commands.shared.json_output import to_plain_value
from aboard.core.evidence.verdict import SLOW
from aboard.core.run import event_kinds as kinds
from aboard.core.run.event_codec import KINDS
from aboard.core.run.events import Event
from aboard.core.run.run_state import GenerationEnd, Run
from aboard.diagnoses import Finding, Severity
from aboard.lazy_dataclass import dataclass

# Of checkpoints; attempts and verdicts are bounded by the record.
_MOST_MARKS = 400
_MOST_VERDICTS = 60
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True, kw_only=True)
class Spell:
    """A time of one class of the run's ledger."""

    kind: str
    start: float
    stop: float


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """When an attempt began, and the step that it continued from, if its program reports it."""

    number: int
    at: float
    step: int | None = None


@dataclass(kw_only=True)
class Timeline:
    """A run over time; times are the head's, in seconds since the epoch."""

    run: Run
    spells: list[Spell] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    # The name and time of each checkpoint, when the first node had its part.
    checkpoints: list[tuple[str, float]] = field(default_factory=list)
    # Verdicts of the progress watch: when it stood, and until when (None: until the end).
    stalls: list[tuple[Finding, float, float | None]] = field(default_factory=list)
    nonfinite: list[float] = field(default_factory=list)
    last: float = 0.0
    unreadable: int = 0

    @property
    def began(self) -> float:
        return self.run.began


def skip_repeated_saves() -> Callable[[Mapping[str, Any]], bool]:
    """Each rank reports each checkpoint, which is most of the events of a long run: the first report is enough."""
    known: set[str] = set()

    def skip(entry: Mapping[str, Any]) -> bool:
        if entry.get("kind") != "saved" or not isinstance(data := entry.get("data"), dict):
            return False
        name = data.get("checkpoint")
        if data.get("copied") or not isinstance(name, str) or name in known:
            return True
        known.add(name)
        return False

    return skip


def build_timeline(run: str, events: Iterable[Event]) -> Timeline:
    """Folds the events, of which `skip_repeated_saves` has left some out; one that can't be folded is counted."""
    timeline = Timeline(run=Run(id=run))
    spent = dict(timeline.run.ledger.seconds)
    for event in events:
        ledger = timeline.run.ledger
        before = (ledger.current, ledger.since)
        timeline.run.apply(event)
        _take_event(timeline, event)
        if (ledger.current, ledger.since) != before:
            _close_spells(timeline, *before, spent)
            spent = dict(ledger.seconds)
        timeline.last = max(timeline.last, event.at)
    return timeline


def list_spells(timeline: Timeline, until: float) -> list[Spell]:
    """All spells; the one that is still going on ends at `until`."""
    ledger = timeline.run.ledger
    going_on = [Spell(kind=ledger.current, start=ledger.since, stop=until)] if ledger.current else []
    return [*timeline.spells, *(spell for spell in going_on if spell.stop > spell.start)]


def _close_spells(timeline: Timeline, current: str, since: float, spent: Mapping[str, float]) -> None:
    """What an event has added to the ledger: of its current class first, and perhaps of one more until the event."""
    added = {kind: seconds - spent[kind] for kind, seconds in timeline.run.ledger.seconds.items()}
    for kind in sorted(added, key=lambda kind: kind != current):
        if added[kind] > 0:
            timeline.spells.append(Spell(kind=kind, start=since, stop=since + added[kind]))
            since += added[kind]


def _take_event(timeline: Timeline, event: Event) -> None:
    match event.body:
        case kinds.AttemptStarted(number=number):
            timeline.attempts.append(Attempt(number=number, at=event.at))
            _end_stall(timeline, event.at)
        case kinds.SteppingStarted(start=start):
            if timeline.attempts:
                last = timeline.attempts[-1]
                timeline.attempts[-1] = Attempt(number=last.number, at=last.at, step=start)
        case kinds.FilesSaved(checkpoint=checkpoint):
            timeline.checkpoints.append((checkpoint.visible(), event.at))
        case kinds.VerdictChanged(findings=found):
            _end_stall(timeline, event.at)
            timeline.stalls += [(finding, event.at, None) for finding in found[:1]]
            del timeline.stalls[:-_MOST_VERDICTS]
        case kinds.UnknownEvent(kind=word):
            # A newer version's kind is no damage.
            timeline.unreadable += word in KINDS
        case _:
            pass


def _end_stall(timeline: Timeline, at: float) -> None:
    if timeline.stalls and timeline.stalls[-1][2] is None:
        finding, since, _ = timeline.stalls[-1]
        timeline.stalls[-1] = (finding, since, at)


def list_verdicts(timeline: Timeline, findings: Iterable[Finding]) -> list[Verdict]:
    """Every verdict with the moment that it belongs to, the last one of the run first."""
    ended = timeline.run.generation.ending or (timeline.run.finished and timeline.last) or timeline.last
    failures = list(timeline.run.recoveries)
    number = timeline.run.generation.number
    verdicts = [
        _describe_finding(finding, at=ended, attempt=number, step=timeline.run.step if place == 0 else None)
        for place, finding in enumerate(findings)
    ]
    for finding, since, until in reversed(timeline.stalls):
        same = next((each for each in verdicts if each["code"] == finding.code and until is None), None)
        if same is not None:
            same["at"] = since
        elif finding.severity > Severity.INFO or finding.code.startswith(SLOW):
            verdicts.append(_describe_finding(finding, at=since, until=until))
    if verdicts and failures and failures[-1].number == number:
        # What was decided about the last attempt, by the code that its program gave, if it gave one.
        last = _describe_failure(failures.pop())
        told = {"code": last["code"], "title": last["title"] or verdicts[0]["title"], "step": last["step"]}
        verdicts[0] = cast("Verdict", {**last, **verdicts[0], **told})
    verdicts += map(_describe_failure, reversed(failures))
    return sorted(verdicts, key=lambda each: -each["at"])[:_MOST_VERDICTS]


def _describe_finding(finding: Finding, **moment: Any) -> Verdict:
    plain = {
        "code": finding.code,
        "title": finding.diagnosis.title,
        "severity": finding.severity.word,
        "nodes": finding.nodes,
        "ranks": finding.ranks,
        "seen": finding.seen,
        "why": finding.why,
        "fix": finding.fix,
    }
    consequences = [f"{each.code}: {each.seen}" for each in finding.consequences[:8]]
    return cast("Verdict", {**to_plain_value(plain), "consequences": to_plain_value(consequences), **moment})


def _describe_failure(failure: GenerationEnd) -> Verdict:
    """A failure after which the run went on."""
    title = ""
    with suppress(*_MALFORMED):
        from aboard.diagnoses.catalogue import recall_diagnosis  # noqa: PLC0415 - only for runs that restarted

        title = recall_diagnosis(failure.code).title
    plain = {
        "code": failure.code or "failed",
        "title": title,
        "severity": "block",
        "nodes": failure.nodes,
        "ranks": (),
        "seen": failure.seen,
        "why": "",
        "fix": failure.fix,
        "action": failure.action,
        "done": failure.why,
        "down": failure.down,
        "pause": failure.pause,
    }
    moment = {"at": failure.at, "attempt": failure.number, "step": failure.step}
    return cast("Verdict", {**to_plain_value(plain), "consequences": [], **moment})
