"""A training run that another launcher started: the same verdicts, reworded, and what such an inspection can't see."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from aboard.core.cluster.node_sets import fold_names, quote_folded_names
from aboard.core.evidence.external_jobs import ExternalJob
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import Judgement
from aboard.core.text.input_text import agree
from aboard.core.text.rank_sets import name_ranks
from aboard.diagnoses import Finding, Fix, Severity, sort_by_severity
from aboard.diagnoses.untrusted import escape_text
from aboard.doctor.external_jobs import diagnoses as external_jobs
from aboard.doctor.judge_evidence import judge_evidence

_FEW = 3
_RANKS = re.compile(r"\brank(s?)(?= \d)")
_ENV = re.compile(r"^aboard launch --env (\S+) -- …", re.MULTILINE)
_LOGS = re.compile(r"^aboard logs .*$\n?", re.MULTILINE)
# The agent's suggestions that let py-spy read a stack; no other text from a node becomes a command.
_STACK_FIXES = {
    "install": re.compile(r"(?P<python>.+) -m pip install py-spy"),
    "scope": re.compile(r"sudo sysctl kernel\.yama\.ptrace_scope=0"),
    "sudo": re.compile(r"sudo (?P<program>.+) dump --pid (?P<pid>\d+)"),
}


def judge_external_job(
    job: ExternalJob, others: Sequence[ExternalJob], evidence: Evidence, *, nodes: Sequence[str]
) -> Judgement:
    """The verdict, then the ranks that were not found: a dead process leaves no other trace.

    `nodes` are all nodes of the training; empty when only processes of one machine were inspected.
    """
    why, unread = judge_evidence(evidence), _list_unread_stacks(evidence)
    run_findings = [
        _reword_finding(finding, job, unread)
        for finding in why.findings
        if evidence.quiet or not _is_transient(finding)
    ]
    found = [
        *run_findings,
        *_find_missing_ranks(job, nodes, evidence.unheard),
        *_list_silent_nodes(evidence.unheard),
        *_find_missing_stacks(job, evidence),
        *_list_other_jobs(others),
    ]
    return replace(why, findings=tuple(sort_by_severity(found)))


def _is_transient(finding: Finding) -> bool:
    """Whether a finding matters only if it lasts: in a healthy training, ranks wait for each other all the time."""
    return finding.severity is Severity.INFO and finding.code.startswith(("hang-", "init-"))


def _find_missing_ranks(job: ExternalJob, expected: Sequence[str], unheard: Mapping[str, str]) -> Iterator[Finding]:
    if not job.missing:
        return
    nodes = expected or job.nodes
    place = f"not found on {nodes[0]}" if len(nodes) == 1 else f"found on none of the {len(nodes)} nodes"
    yield external_jobs.RANKS_MISSING.finding(
        severity=None if expected else Severity.INFO,
        nodes=(),
        ranks=() if job.launching else job.missing,
        seen=f"{name_ranks(job.missing, job.noun)} of {job.size} {agree(job.missing, 'was', 'were')}"
        f" {place}" + (f"; {fold_names(unheard)} did not respond" if unheard else ""),
        fix=external_jobs.RANKS_MISSING.fix("few", nodes=nodes)
        if len(nodes) <= _FEW
        else external_jobs.RANKS_MISSING.fix("many", nodes=fold_names(nodes)),
    )


def _list_silent_nodes(unheard: Mapping[str, str]) -> Iterator[Finding]:
    for name, reason in unheard.items():
        yield external_jobs.NODE_UNHEARD.finding(
            nodes=(name,), seen=f"{name} could not be queried: {reason}", fix=external_jobs.NODE_UNHEARD.fix(node=name)
        )


def _find_missing_stacks(job: ExternalJob, evidence: Evidence) -> Iterator[Finding]:
    """Ranks without a stack, grouped by reason."""
    reasons: dict[tuple[str, str], list[int]] = {}
    for rank, answer in _list_unread_stacks(evidence).items():
        why, _, fix = answer.partition("\n")
        reasons.setdefault((escape_text(why, 200), fix), []).append(rank)
    for (why, fix), ranks in reasons.items():
        nodes = tuple(dict.fromkeys(job.ranks[rank].node for rank in ranks))
        pid = job.ranks[ranks[0]].process.pid
        yield external_jobs.NO_STACKS.finding(
            nodes=nodes,
            ranks=() if job.launching else tuple(ranks),
            seen=f"could not read the {agree(ranks, 'stack', 'stacks')} of {name_ranks(ranks, job.noun)}: {why}",
            why="Stacks show which rank never enters a collective; without them, the verdict relies on connections and"
            " kernel state.",
            fix=_build_stack_fix(fix, pid, nodes),
        )


def _list_unread_stacks(evidence: Evidence) -> dict[int, str]:
    """The agent's answer for each rank whose stack it could not read."""
    answers = {view.rank: view.seen.why.get("stack", "") for view in evidence.views if view.seen is not None}
    return {rank: answer for rank, answer in answers.items() if answer}


def _build_stack_fix(suggestion: str, pid: int, nodes: tuple[str, ...]) -> Fix:
    for variant, pattern in _STACK_FIXES.items():
        if found := pattern.fullmatch(suggestion):
            return external_jobs.NO_STACKS.fix(variant, **found.groupdict(), nodes=quote_folded_names(nodes))
    return external_jobs.NO_STACKS.fix("look", pid=pid, nodes=quote_folded_names(nodes))


def _list_other_jobs(others: Sequence[ExternalJob]) -> Iterator[Finding]:
    for world in others:
        first = world.ranks[min(world.ranks)]
        place = (
            f", with {agree(world.ranks, 'its', 'their')} store at {world.address}:{world.port}" if world.port else ""
        )
        yield external_jobs.OTHER_RUN.finding(
            nodes=world.nodes,
            seen=f"{name_ranks(world.ranks, world.noun)} of {world.what}{place}"
            f"{',' * bool(place)} {agree(world.ranks, 'belongs', 'belong')} to a different, older training run",
            fix=external_jobs.OTHER_RUN.fix(pid=first.process.pid, node=first.node),
        )


def _reword_finding(finding: Finding, job: ExternalJob, unread: Mapping[int, str]) -> Finding:
    """Rewords a finding for a job without an Aboard run: no `aboard logs`, and launchers aren't ranks.

    Where py-spy is missing or may not read a stack, the fix is what lets it.
    """
    fix = Fix(_ENV.sub(r"export \1", _LOGS.sub("", finding.fix).rstrip("\n")))
    if not fix and finding.ranks and finding.ranks[0] in job.ranks:
        seat = job.ranks[finding.ranks[0]]
        fix = external_jobs.NO_STACKS.fix("threads", pid=seat.process.pid, node=seat.node)
    if "py-spy dump" in fix and (rank := next((rank for rank in finding.ranks if rank in unread), None)) is not None:
        seat, suggestion = job.ranks[rank], unread[rank].partition("\n")[2]
        fix = _build_stack_fix(suggestion, seat.process.pid, (seat.node,))
    folded = tuple(_reword_finding(each, job, unread) for each in finding.consequences)
    if not job.launching:
        return replace(finding, fix=fix, consequences=folded)
    seen, why = (_RANKS.sub(r"launcher\1", text) for text in (finding.seen, finding.why))
    return replace(finding, seen=seen, why=why, fix=fix, ranks=(), consequences=folded)
