"""Collects the evidence of a run, judges it while it hangs and when a generation ends, and records what was judged."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import monotonic, time

from aboard.core.cluster.node_sets import fold_names
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.snapshot import build_snapshot
from aboard.core.evidence.verdict import Judgement
from aboard.core.exit_codes import choose_run_exit_code
from aboard.core.plan.plan import Plan
from aboard.core.run.end_decision import EndDecision
from aboard.core.run.event_kinds import SnapshotJudged, VerdictChanged
from aboard.core.run.run_state import Run
from aboard.diagnoses import Finding
from aboard.doctor.death.first_death import find_first_death
from aboard.doctor.death.rules import conclude_run
from aboard.doctor.hang.undetermined import report_internal_error
from aboard.doctor.judge_evidence import judge_live_run
from aboard.engine.conductor.collect_evidence import (
    CollectedEvidence,
    collect_death_evidence,
    collect_evidence,
    collect_follow_up,
)
from aboard.engine.conductor.stall_monitor import StallMonitor
from aboard.engine.sessions.node_messages import NodeMessages
from aboard.record.run_record import Record
from aboard.transport.node_session import NO_STACKS, NodeSession

_LOG = logging.getLogger(__name__)

STACKS_BYTES = 32 * 1024 * 1024
# The last output of these first ranks is searched for a non-finite loss: usually rank 0 prints it.
LOSS_SCAN_RANKS = 8


class RunVerdicts:
    """The evidence of the present generation, and the verdicts on it."""

    def __init__(
        self, run: Run, messages: NodeMessages, record: Record, build_monitor: Callable[[], StallMonitor]
    ) -> None:
        self.stacks: dict[int, str] = {}
        self._run = run
        self._messages = messages
        self._record = record
        self._build_monitor = build_monitor
        self._stacks_room = STACKS_BYTES
        self._collected = CollectedEvidence()
        self._snapshot_count = 0
        self._standing: Finding | None = None
        self.watch = build_monitor()

    async def reset_evidence(self) -> None:
        """Forgets what the last generation was judged by, so that the next one is judged by its own evidence."""
        await self.watch.close()
        self.watch = self._build_monitor()
        self._collected = CollectedEvidence()
        self._standing = None
        self._messages.clear_output()
        self.stacks.clear()
        self._stacks_room = STACKS_BYTES

    def build_evidence(self, plan: Plan) -> Evidence:
        now, messages = time(), self._messages
        first = self._run.generation.first_death
        dead_rank = {messages.ranks[first.name]} if first is not None else set()
        return Evidence(
            plan=plan,
            run=self._run,
            tails={rank: messages.get_last_lines(rank) for rank in messages.tails},
            now=now,
            snapshots=self._collected.snapshots,
            unheard=self._collected.unheard,
            quiet=self.watch.rhythm.quiet(now),
            usual=self.watch.rhythm.usual,
            pace=self.watch.rhythm.pace,
            last_lines={
                rank: self._record.tail(rank) for rank in {*range(min(LOSS_SCAN_RANKS, plan.world)), *dead_rank}
            },
        )

    async def ask_why(self, plan: Plan, sessions: Mapping[str, NodeSession]) -> Judgement:
        """Queries every node for a snapshot and judges why the run makes no progress."""
        began = monotonic()
        try:
            collected = self._collected = await collect_evidence(plan, self._run, sessions)
            self._collected = await collect_follow_up(collected, self.build_evidence(plan), sessions)
            evidence = self.build_evidence(plan)
            why = judge_live_run(evidence)
            if not why.findings and self._run.generation.first_death is not None:
                # A rank has died, and the others are being stopped: report that death.
                end = conclude_run(evidence, self._standing, was_stopped=False)
                why = replace(why, findings=end.findings, ruled_out=(*why.ruled_out, *end.ruled_out))
            self._record_snapshot(evidence, why.findings)
        except Exception as error:  # noqa: BLE001 - a bug in Aboard must not leave a stuck run without a verdict
            why = Judgement(findings=(report_internal_error(error, run=plan.run),))
        why = replace(why, seconds=monotonic() - began)
        _log_judgement("live", why, self._collected.unheard)
        return why

    def take(self, finding: Finding | None) -> None:
        """Records a verdict of the stall monitor, which stands until the next one, and shows it to the observer."""
        self._standing = finding
        self._messages.note(VerdictChanged(findings=() if finding is None else (finding,)))

    async def collect_final_snapshot(self, plan: Plan, sessions: Mapping[str, NodeSession]) -> None:
        """Takes a snapshot of the nodes and the other ranks after a rank has died, before all are stopped."""
        collected = await collect_evidence(plan, self._run, sessions, brief=True)
        self._collected = await collect_death_evidence(collected, plan, self._run, sessions)
        for node in self._collected.snapshots.values():
            for rank, rank_snapshot in node.ranks.items():
                text = rank_snapshot.stack.raw() or NO_STACKS + rank_snapshot.why.get("stack", "")
                # Thousands of hanging ranks mostly have the same stacks: the first ones are enough.
                if self._stacks_room >= len(text):
                    self._stacks_room -= len(text)
                    self.stacks[rank] = text
        self._record.write_stacks(self.stacks)

    def conclude(self, plan: Plan, end: EndDecision) -> tuple[tuple[Finding, ...], int]:
        """The findings on the generation that has ended, verdict first, and the exit code of the rank that it names."""
        self._messages.note_dropped(at_end=True)
        evidence = self.build_evidence(plan)
        was_stopped = end.asked or end.stuck
        # The monitor's own is the same verdict with the figures of its last look.
        standing = self._standing and (self.watch.verdict or self._standing)
        concluded = conclude_run(evidence, standing, was_stopped=was_stopped)
        _log_judgement("at the end", concluded, self._collected.unheard)
        findings = concluded.findings
        if not was_stopped:
            self._record_snapshot(evidence, findings, ended=True)
        # Aboard ended the run because ranks started launchers; clocks may put their deaths before that.
        is_nested = self._run.generation.nested is not None and plan.world > 1
        return findings, choose_run_exit_code(end, None if is_nested else find_first_death(evidence), findings)

    def _record_snapshot(self, evidence: Evidence, findings: tuple[Finding, ...], *, ended: bool = False) -> None:
        """Records the snapshot behind a verdict, so that it can be judged again."""
        if findings:
            self._snapshot_count += 1
            self._record.add_snapshot(
                build_snapshot(evidence, self._collected.answers, findings, number=self._snapshot_count, ended=ended)
            )
            self._messages.note(SnapshotJudged(number=self._snapshot_count))


def _log_judgement(when: str, why: Judgement, unheard: Mapping[str, str]) -> None:
    """Why this verdict and not another: the causes in their order, what was ruled out, and who did not answer."""
    for place, each in enumerate(why.findings):
        _LOG.info(
            "%s, cause %d: %s (%s) on %s: %s",
            when,
            place + 1,
            each.code,
            each.severity.name.lower(),
            fold_names(each.nodes),
            each.seen,
        )
    if why.ruled_out:
        _LOG.debug("%s, ruled out: %s", when, "; ".join(f"{each.what} ({each.why})" for each in why.ruled_out))
    for node, reason in unheard.items():
        _LOG.debug("%s, no snapshot of %s: %s", when, node, reason)
    if not why.findings:
        _LOG.info("%s: no cause found", when)
