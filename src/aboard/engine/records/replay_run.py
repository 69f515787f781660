"""Judges a run again from its record by the rules of this version, in the same way as a live run."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.snapshot import Snapshot
from aboard.core.evidence.verdict import Judgement, ReplayedJudgement, RuledOut, is_same_verdict
from aboard.core.run.event_kinds import AttemptStarted, Deciding, SnapshotJudged, VerdictChanged
from aboard.core.run.events import Event
from aboard.core.run.run_state import Run
from aboard.core.slurm.job_state import JobStatus
from aboard.diagnoses import AboardError, Finding, Fix, Severity
from aboard.diagnoses.runs import death
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import run_records
from aboard.doctor.death.first_death import find_first_death, is_echo
from aboard.doctor.death.rules import conclude_run
from aboard.doctor.judge_evidence import judge_live_run
from aboard.doctor.logs import diagnoses as undetermined
from aboard.doctor.logs.judge_log import judge_log
from aboard.doctor.logs.log_scanner import LogScanner
from aboard.doctor.slurm.slurm_jobs import judge_job
from aboard.engine.records.record_parts import LOGS, read_record_parts
from aboard.engine.records.recorded_run import RecordedLogLine, RecordedRun, parse_recorded_run
from aboard.engine.records.status import summarize_run
from aboard.record.run_directory import RunDirectory
from aboard.record.runs import Runs

# Among this many of the newest runs, one that ended badly is searched for.
NEWEST = 20


def find_default_run(runs: Runs, jobs: Container[str] = ()) -> RunDirectory:
    """The run to explain if none is named: the newest that ended badly since the last question.

    Without one, or if a run that began afterwards is live: the newest live run, or else the newest. Runs whose Slurm
    `jobs` wait or run are live too.
    """
    all_runs = runs.all()
    if not all_runs:
        raise AboardError(run_records.RUN_NONE, "there is no run yet", "others")
    live = next((run for run in all_runs if run.live or run.id in jobs), None)
    since = max(runs.last_question, live.began if live is not None else 0.0)
    over = (run for run in all_runs[:NEWEST] if run.written > since and not run.live and run.id not in jobs)
    return next(filter(_has_ended_badly, over), live or all_runs[0])


def _has_ended_badly(run: RunDirectory) -> bool:
    """Whether it is known to have failed; a Slurm job without an end may just run elsewhere."""
    known = ("failed", "refused") if run.slurm_job.exists() else ("failed", "refused", "lost")
    return summarize_run(run).state in known


def judge_finished_run(run: RunDirectory, job: JobStatus | None = None) -> ReplayedJudgement:
    """Judges a record by today's rules, like a bundle; only here a killed conductor is detected as well.

    If Slurm ended the `job` of the conductor, that is the reason.
    """
    replayed = replay_run(parse_recorded_run(run.id, read_record_parts(run), own=True))
    run_summary = summarize_run(run)
    if run_summary.state != "lost":
        return replayed
    # If a rank had died before, the lost conductor is only a warning, and comes second.
    blocks = run_summary.findings[0].severity is Severity.BLOCK
    ended = judge_job(job, datetime.now()) if job is not None else None  # noqa: DTZ005 - as Slurm's times
    lost = (*(() if ended is None else (ended,)), *run_summary.findings)
    findings = (*lost, *replayed.why.findings) if blocks else (*replayed.why.findings, *lost)
    return replace(replayed, why=replace(replayed.why, findings=findings))


_MOST_TEXT = 20_000
# General verdicts, to which a rank's own log may add detail.
_GENERAL = (death.RAISED.code, death.EXITED.code, death.KILLED.code)


def replay_run(recorded: RecordedRun) -> ReplayedJudgement:
    folded = Run.replay(recorded.run, recorded.events)
    over = folded.finished is not None or folded.generation.ending is not None
    snapshot = _find_current_snapshot(recorded)
    if snapshot is not None and not over:
        return _build_replay(recorded, judge_recorded_snapshot(recorded, snapshot), snapshot.findings, snapshot.version)
    stall, ruled_out = _rejudge_stall(recorded)
    was_stopped = _was_stopped(recorded, folded) if over else stall is not None
    evidence = _build_end_evidence(recorded, folded) if recorded.plan is not None else None
    end = conclude_run(evidence, stall, was_stopped=was_stopped) if evidence is not None else Judgement()
    # A script may have failed after its run, or another run of it before.
    has_failed = folded.finished is not None and folded.finished.code != 0
    has_succeeded = folded.finished is not None and not has_failed and not folded.stopping
    findings = list(end.findings or (() if recorded.snapshots and not has_failed else recorded.findings))
    if not findings:
        # What a run that succeeded has printed, such as an exception in a finalizer, has not ended it.
        most = Severity.WARN if has_succeeded else Severity.BLOCK
        findings = [each for each in _judge_log_lines(recorded.lines) if Severity.INFO < each.severity <= most]
    elif findings[0].code in _GENERAL:
        findings = _add_log_findings(recorded, findings, evidence)
    version = recorded.snapshots[-1].version if recorded.snapshots else ""
    why = Judgement(findings=tuple(findings), ruled_out=(*ruled_out, *end.ruled_out))
    return _build_replay(recorded, why, recorded.findings, version)


def _find_current_snapshot(recorded: RecordedRun) -> Snapshot | None:
    """The last snapshot before the run ended, unless its verdict has been withdrawn since."""
    snapshots = [snapshot for snapshot in recorded.snapshots if not snapshot.ended]
    # A further generation is judged by its own evidence.
    if not snapshots or any(
        isinstance(event.body, AttemptStarted) or (isinstance(event.body, VerdictChanged) and not event.body.findings)
        for event in _split_events(recorded, snapshots[-1])[1]
    ):
        return None
    return snapshots[-1]


def _rejudge_stall(recorded: RecordedRun) -> tuple[Finding | None, tuple[RuledOut, ...]]:
    """The verdict that stood when the run ended, judged again; as recorded if its snapshot was not kept."""
    bodies = [event.body for event in recorded.events if isinstance(event.body, VerdictChanged | AttemptStarted)]
    if not bodies or not isinstance(last := bodies[-1], VerdictChanged) or not last.findings:
        return None, ()
    verdict = last.findings[0]
    snapshots = [
        snapshot
        for snapshot in recorded.snapshots
        if not snapshot.ended and snapshot.findings and is_same_verdict(snapshot.findings[0], verdict)
    ]
    if not snapshots:
        return verdict, ()
    why = judge_recorded_snapshot(recorded, snapshots[-1])
    first = why.findings[0] if why.findings and why.findings[0].severity > Severity.INFO else None
    return first, why.ruled_out


def judge_recorded_snapshot(recorded: RecordedRun, snapshot: Snapshot) -> Judgement:
    return judge_live_run(
        snapshot.evidence(Run.replay(recorded.run, _split_events(recorded, snapshot)[0]), recorded.tails())
    )


def _split_events(recorded: RecordedRun, snapshot: Snapshot) -> tuple[Sequence[Event], Sequence[Event]]:
    """The events before and after a snapshot, by its own event or, if that is missing, by time."""
    for index, event in enumerate(recorded.events):
        if isinstance(event.body, SnapshotJudged) and event.body.number == snapshot.number:
            return recorded.events[:index], recorded.events[index + 1 :]
    before = [event for event in recorded.events if event.at <= snapshot.at]
    return before, [event for event in recorded.events if event.at > snapshot.at]


def _build_end_evidence(recorded: RecordedRun, run: Run) -> Evidence:
    """The evidence for the end of the run: the snapshot taken after a rank died, if there is one."""
    last = recorded.snapshots[-1] if recorded.snapshots else None
    if last is not None and last.ended:
        return last.evidence(run, recorded.tails())
    plan = last.plan if last is not None else recorded.plan
    assert plan is not None  # noqa: S101 - checked by the caller
    return Evidence(plan=plan, run=run, tails=recorded.tails())


def _was_stopped(recorded: RecordedRun, run: Run) -> bool:
    decided = [event.body for event in recorded.events if isinstance(event.body, Deciding)]
    was_stopped = decided[-1].was_stopped if decided else None
    # Earlier versions did not record it.
    return bool(run.stopping) if was_stopped is None else was_stopped


def _add_log_findings(recorded: RecordedRun, findings: list[Finding], evidence: Evidence | None) -> list[Finding]:
    """The findings, extended by those of the logs.

    A rank that died by itself is explained by its own log only: the errors of others follow from its death. Errors are
    separate findings only where the verdict has no other fix than to read the log.
    """
    first, *rest = findings
    known_codes = {finding.code for finding in findings}
    cause = find_first_death(evidence) if evidence is not None else None
    by_itself = evidence is not None and cause is not None and not is_echo(evidence, cause)
    own = [line for line in recorded.lines if line.rank in first.ranks] if by_itself else recorded.lines
    errors = [
        each for each in _judge_log_lines(own) if each.severity is Severity.BLOCK and each.code not in known_codes
    ]
    warnings = [
        each
        for each in _judge_log_lines(recorded.lines)
        if each.severity is Severity.WARN and each.code not in known_codes
    ]
    # Every fix for a death ends with the logs; the variant is that of what stands before them.
    has_fix = first.fix.variant not in ("", "logs")
    if first.code == death.RAISED.code and has_fix:
        # The verdict has a fix for the exception: the logs of its ranks only repeat it.
        under, errors = [], []
    elif first.code == death.EXITED.code or has_fix:
        # There is no proof that a rank exited, or was killed, because of what it had printed before.
        under, errors = errors, []
    else:
        under = [each for each in errors if each.code == undetermined.PEER_LOST.code]
        errors = [each for each in errors if each.code != undetermined.PEER_LOST.code]
    folded = (replace(each, severity=Severity.INFO) for each in under)
    return [replace(first, consequences=(*first.consequences, *folded)), *rest, *errors, *warnings]


def _judge_log_lines(lines: Iterable[RecordedLogLine]) -> list[Finding]:
    reader = LogScanner()
    reader.begin(LOGS)
    for line in sorted(lines, key=lambda line: line.at):
        reader.take(f"{line.node}: [rank{line.rank}]: {line.text.raw()}".encode("utf-8", "backslashreplace"))
    return judge_log(reader.reading())


def _build_replay(
    recorded: RecordedRun, judgement: Judgement, then: tuple[Finding, ...], version: str
) -> ReplayedJudgement:
    """Escapes all text: a terminal shows it, and some comes from whoever packed the bundle."""
    cleaned = replace(
        judgement,
        findings=tuple(map(_clean_finding, judgement.findings)),
        ruled_out=tuple(
            RuledOut(what=_clean_text(each.what), why=_clean_text(each.why)) for each in judgement.ruled_out
        ),
    )
    return ReplayedJudgement(
        run=escape_text(recorded.run), why=cleaned, then=tuple(map(_clean_finding, then)), version=escape_text(version)
    )


def _clean_finding(finding: Finding) -> Finding:
    return replace(
        finding,
        nodes=tuple(map(_clean_text, finding.nodes)),
        seen=_clean_text(finding.seen),
        why=_clean_text(finding.why),
        fix=Fix(_clean_text(finding.fix)),
        about=tuple(map(_clean_text, finding.about)),
        consequences=tuple(map(_clean_finding, finding.consequences)),
    )


def _clean_text(value: str) -> str:
    """Text that is safe for a terminal: control sequences are escaped, line breaks are kept."""
    return "\n".join(escape_text(line, _MOST_TEXT) for line in value[:_MOST_TEXT].splitlines())
