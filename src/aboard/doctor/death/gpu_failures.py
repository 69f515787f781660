"""GPUs that failed during a run, from the kernel log: the cause of hangs and deaths on their node."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from aboard.core.cluster.node_sets import fold_names
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import RuledOut, RuleResult
from aboard.core.run.run_state import RankProcess
from aboard.core.text.durations import format_duration
from aboard.core.text.input_text import agree
from aboard.core.text.rank_sets import name_ranks
from aboard.diagnoses import Cause, Confidence, Finding, RunFailure, Severity, join_fixes
from aboard.diagnoses.untrusted import Untrusted, escape_text
from aboard.doctor.gpu.gpu_errors import FaultyPart, GpuError, build_gpu_fix, parse_gpu_error
from aboard.doctor.hang.collective_hang import list_hang_findings
from aboard.lazy_dataclass import dataclass

# Ages are rounded to a tenth, and a snapshot takes time.
_CLOCK_SECONDS = 3.0
_QUIET_SECONDS = 5.0
# Work queued before a GPU failed may continue for this long.
_MOVES_SECONDS = 60.0
_DEATH_SECONDS = 120.0
_ON_GPU = re.compile(r"cuda|nccl|cublas|cudnn|\becc\b|\bgpus?\b|device-side|nvml|acceleratorerror", re.IGNORECASE)
_ABORTS = (-6, -7, -11)
_WHY = {
    FaultyPart.PROGRAM: "The driver blames the program, not the GPU. Usually a kernel read or wrote invalid memory."
    " Nothing needs to be repaired or replaced.",
    FaultyPart.MEMORY: "The GPU's memory failed. Programs that use it were terminated or compute wrong numbers, and"
    " the other ranks are waiting for them.",
    FaultyPart.LINK: "The link between GPUs failed, so data sent over it never arrives.",
    FaultyPart.BUS: "The GPU fell off the PCI bus. Possible causes: power, heat, the riser or the board. Work on the"
    " GPU never finishes, and all other ranks are waiting for it.",
    FaultyPart.PROCESSOR: "The GPU System Processor (GSP) does not respond, so calls to the GPU never return.",
    FaultyPart.OTHER: "The driver blames the GPU's hardware or firmware.",
    FaultyPart.UNKNOWN: "The driver reports an error that Aboard doesn't know; NVIDIA's list of Xids explains it.",
}


@dataclass(frozen=True, kw_only=True)
class GpuFailure:
    """One GPU error on a node, `at` the head's time, and the ranks whose processes it hit, if known."""

    node: str
    error: GpuError
    at: float
    gpu: str
    ranks: tuple[int, ...] = ()

    @property
    def description(self) -> str:
        what = f"{self.error.name}, " if self.error.name else ""
        return f"the kernel on {self.node} reports {what}{self.gpu}: {self.error.meaning.what}"


def diagnose_gpu_failures(evidence: Evidence) -> Iterator[RuleResult]:
    """A GPU error is the cause if the run has stalled since; otherwise it is information."""
    with_gpus = {name: node for name, node in evidence.snapshots.items() if node.gpus}
    blind = [name for name, node in with_gpus.items() if node.kernel is None]
    if blind:
        why = f"this user can't read the kernel log on {fold_names(blind)}; `sudo dmesg | grep -i xid` shows it"
        yield RuledOut(what="a failed GPU", why=why)
    every = list_gpu_failures(evidence)
    if not every and len(blind) < len(with_gpus):
        yield RuledOut(what="a failed GPU", why="the kernel reports no GPU error during this run")
    quiet = evidence.quiet or 0.0
    stands = quiet >= max(_QUIET_SECONDS, 3 * (evidence.pace or 0.0))
    for node in dict.fromkeys(each.node for each in every):
        first = _pick_first_failure([each for each in every if each.node == node])
        yield _build_cause(evidence, first, grave=stands and not _is_outlived(evidence, first))


RULES = (diagnose_gpu_failures,)


def find_fatal_gpu_failure(
    evidence: Evidence, cause: RankProcess, last_words: Untrusted, *, echo: bool
) -> GpuFailure | None:
    """The GPU failure that killed a rank: on its own node, or on any if it only reports lost peers."""
    every = [
        each
        for each in list_gpu_failures(evidence)
        if each.error.meaning.harms and each.at <= cause.died_at + _CLOCK_SECONDS
    ]
    own = [each for each in every if each.node == cause.node and _is_gpu_death(cause, last_words, each)]
    lasting = [each for each in every if each.error.meaning.ends] if echo else []
    fitting = [each for each in own if each.error.meaning.ends or cause.died_at - each.at <= _DEATH_SECONDS]
    return _pick_first_failure(fitting or lasting) if fitting or lasting else None


def build_gpu_death_finding(failure: GpuFailure, death: Finding) -> Finding[RunFailure]:
    """The verdict on a death that a GPU caused, with the death and its consequences under it."""
    return failure.error.meaning.diagnosis.finding(
        severity=Severity.BLOCK,
        nodes=(failure.node,),
        ranks=failure.ranks or (death.ranks if failure.node in death.nodes else ()),
        seen=f"{failure.description}; then {death.seen}",
        why=_WHY[failure.error.meaning.part],
        fix=build_gpu_fix(failure.error, failure.node),
        consequences=(replace(death, consequences=()), *death.consequences),
        about=(failure.error.device,),
    )


def add_gpu_errors(
    evidence: Evidence, cause: RankProcess, last_words: Untrusted, finding: Finding[RunFailure]
) -> Finding[RunFailure]:
    """Adds the driver's error that blames the program, or a fix for an unreadable kernel log."""
    node = evidence.snapshots.get(cause.node)
    if node is None or not last_words.match(_ON_GPU):
        return finding
    near = [each for each in list_gpu_failures(evidence) if each.node == cause.node and not each.error.meaning.harms]
    near = [each for each in near if abs(cause.died_at - each.at) <= _MOVES_SECONDS]
    if near:
        first = _pick_first_failure(near)
        why = _WHY[first.error.meaning.part]
        return replace(
            finding,
            seen=f"{finding.seen}; {first.description}",
            why=why,
            fix=build_gpu_fix(first.error, cause.node),
        )
    if node.gpus and node.kernel is None:
        return replace(finding, fix=join_fixes(finding.fix, finding.diagnosis.fix("xid", node=cause.node)))
    return finding


def list_gpu_failures(evidence: Evidence) -> list[GpuFailure]:
    """The GPU errors in kernel logs during this generation, earliest first."""
    found = []
    for name, node in evidence.snapshots.items():
        places = {address.lower().partition(".")[0]: number for number, address in enumerate(node.gpus)}
        for line in node.kernel or ():
            age, _, text = line.raw().partition(" ")
            error = parse_gpu_error(text)
            at = node.at - float(age) if re.fullmatch(r"-?\d{1,12}(\.\d{1,6})?", age) else 0.0
            if error is None or at < evidence.run.generation.at - _CLOCK_SECONDS:
                continue
            kind = "NVSwitch" if error.switch else f"GPU {places[error.device]}" if error.device in places else "GPU"
            gpu = f"{kind} at {escape_text(error.device)}"
            found.append(
                GpuFailure(node=name, error=error, at=at, gpu=gpu, ranks=_find_hit_ranks(evidence, name, error))
            )
    return sorted(found, key=lambda each: each.at)


def _is_outlived(evidence: Evidence, first: GpuFailure) -> bool:
    """Whether the run made steps long after it; unknown for a run that reports no steps."""
    if evidence.usual is None and first.error.meaning.ends:
        return False
    last = evidence.now - (evidence.quiet or 0.0)
    return first.at < last - max(_MOVES_SECONDS, 3 * (evidence.usual or 0.0))


def _build_cause(evidence: Evidence, first: GpuFailure, *, grave: bool) -> Cause:
    ranks = first.ranks or tuple(view.rank for view in evidence.views if view.node == first.node and view.alive)
    verb = "used it" if first.ranks else agree(ranks, "runs there", "run there")
    on_it = f"{name_ranks(ranks)} on {first.node} {verb}" if ranks else ""
    severity = Severity.INFO
    if grave:
        # GPU rules are tested on recordings only, so the severity is that of the finding it explains.
        explained = [each.severity for each in list_hang_findings(evidence) if first.node in each.nodes]
        severity = max([Severity.WARN, *explained]) if first.error.meaning.harms else Severity.WARN
    return first.error.meaning.diagnosis.finding(
        severity=severity,
        nodes=(first.node,),
        ranks=ranks if grave else (),
        seen=f"{first.description}, {format_duration(evidence.now - first.at)} ago{f'; {on_it}' if on_it else ''}",
        why=_WHY[first.error.meaning.part],
        fix=build_gpu_fix(first.error, first.node),
        about=(first.error.device,),
    ).as_cause(Confidence.CERTAIN if first.error.meaning.ends else Confidence.LIKELY, since=first.at)


def _pick_first_failure(every: Sequence[GpuFailure]) -> GpuFailure:
    """The earliest that doesn't follow from another one; hardware errors before program errors."""
    return min(every, key=lambda each: (not each.error.meaning.harms, each.error.meaning.follows, each.at))


def _is_gpu_death(cause: RankProcess, last_words: Untrusted, failure: GpuFailure) -> bool:
    hit = cause.name.isdigit() and int(cause.name) in failure.ranks
    return hit or last_words.match(_ON_GPU) is not None or (cause.raised is None and cause.code in _ABORTS)


def _find_hit_ranks(evidence: Evidence, node: str, error: GpuError) -> tuple[int, ...]:
    """The ranks whose process tree contains the pid that the driver names."""
    found = []
    for view in evidence.views:
        if error.pid is not None and view.node == node and view.seen is not None:
            members = [each.pid for each in (view.seen.process, *view.seen.workers) if each is not None]
            found += [view.rank] if error.pid in members else []
    return tuple(found)
