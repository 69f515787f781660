"""What Slurm's commands say of jobs and nodes: sacct, scontrol show job, scontrol show node."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime

from aboard.core.decoding import DecodeError
from aboard.core.slurm.job_state import JobPhase, JobStatus, parse_job_status
from aboard.core.slurm.slurm_facts import parse_node_states
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.slurm import jobs
from aboard.doctor.logs.timestamps import parse_timestamp
from aboard.doctor.slurm.slurm_jobs import judge_job

_STATES = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PENDING", "PREEMPTED", "REQUEUED", "RUNNING", "SUSPENDED", "TIMEOUT"),
)
# A step may say more than its job, which failed because of it.
_SPECIFIC = ("OUT_OF_MEMORY", "NODE_FAIL", "TIMEOUT", "PREEMPTED")
_SCHEDULED = re.compile(r"\b(?:LastSchedEval|EligibleTime|SubmitTime)=(\d{4}-\d\d-\d\dT[\d:]{8})")
_ENDED = re.compile(r"\bEndTime=(\S{19})")
_MOST_ROWS = 100_000
_LONG_AGO = datetime(1970, 1, 1)  # noqa: DTZ001 - times of Slurm have no zone


def judge_shown_jobs(text: str, _node: str) -> Iterator[tuple[Finding, float | None]]:
    """`scontrol show job`: why a job waits, or how it ended."""
    for record in _list_records(text):
        status, asked, ended = parse_job_status(record), _SCHEDULED.findall(record), _ENDED.search(record)
        if status is None:
            raise DecodeError("a record in it is no job")
        finding = judge_job(status, datetime.fromisoformat(max(asked)) if asked else _LONG_AGO)
        if finding is not None:
            yield finding, parse_timestamp(ended[1]) if ended else None


def judge_shown_nodes(text: str, _node: str) -> Iterator[tuple[Finding, None]]:
    """`scontrol show node`: nodes that are down or drained."""
    nodes = parse_node_states("\n".join(_list_records(text)))
    if not nodes or not all(re.fullmatch(r"[\w.-]{1,200}", name) for name in nodes):
        raise DecodeError("no node in it, or a name that is none")
    for name, node in nodes.items():
        if node.is_down or node.is_drained:
            diagnosis = jobs.NODE_DOWN if node.is_down else jobs.NODE_DRAINED
            reason = node.reason.visible(200) or "no reason was given"
            seen = f"Slurm reports it as {'+'.join(sorted(node.states))}: {reason}"
            # Of a whole cluster, most are none of the run's.
            fix = diagnosis.fix(node=name)
            yield diagnosis.finding(severity=Severity.WARN, nodes=(name,), seen=seen, fix=fix), None


def judge_accounting(text: str, _node: str) -> Iterator[tuple[Finding, float | None]]:
    """`sacct`: how jobs ended, the last one first."""
    found: dict[int, tuple[JobStatus, float | None]] = {}
    for row in _list_rows(text):
        job = re.match(r"\d{1,9}(?!\d)", row.get("JobID", "") or row.get("JobIDRaw", ""))
        state = _parse_state(row.get("State", ""))
        if job is None or not state:
            continue
        number = int(job[0])
        if number not in found or (state in _SPECIFIC and found[number][0].phase is JobPhase.ENDED):
            nodes = row.get("NodeList", "")
            status = JobStatus(
                id=number,
                state=state,
                nodes=nodes if re.fullmatch(r"[\w.,\[\]-]{1,200}", nodes) and nodes != "None" else "",
                time_limit=limit if re.fullmatch(r"[\d:-]{4,16}", limit := row.get("Timelimit", "")) else "",
                exit_code=int(code[1]) if (code := re.match(r"(\d{1,3}):\d", row.get("ExitCode", ""))) else None,
            )
            found[number] = status, parse_timestamp(row.get("End", ""))
    if not found:
        raise DecodeError("no job in it")
    for status, at in reversed(found.values()):
        finding = judge_job(status, _LONG_AGO)
        if finding is not None:
            yield finding, at


def _list_records(text: str) -> list[str]:
    """Each job or node on one line, as with -o: further lines of it are indented."""
    records: list[list[str]] = []
    for line in text.splitlines():
        if records and line[:1].isspace():
            records[-1].append(line.strip())
        elif line.strip():
            records.append([line.strip()])
    return [" ".join(lines) for lines in records]


def _list_rows(text: str) -> Iterator[Mapping[str, str]]:
    """The rows by column, of fixed width under a line of dashes or separated by bars."""
    lines = [line for line in text.splitlines() if line.strip()][:_MOST_ROWS]
    if "|" in lines[0]:
        names = lines[0].strip().split("|")
        yield from (dict(zip(names, line.split("|"), strict=False)) for line in lines[1:])
    elif len(lines) > 1:
        columns = [(found.start(), found.end()) for found in re.finditer(r"-+", lines[1])]
        names = [lines[0][start:end].strip() for start, end in columns]
        for line in lines[2:]:
            yield {name: line[start:end].strip() for name, (start, end) in zip(names, columns, strict=True)}


def _parse_state(text: str) -> str:
    """Slurm's word; a narrow column cuts it: OUT_OF_ME+. `CANCELLED by 1000` is CANCELLED."""
    word = re.match(r"[A-Z_]{4,20}", text)
    return next((state for state in _STATES if word and state.startswith(word[0])), "")
