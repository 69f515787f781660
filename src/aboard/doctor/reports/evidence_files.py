"""Reports among the files of a case, read whole, and judged together with what the logs say."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from aboard.core.decoding import DecodeError, decode_with, try_parse_json
from aboard.core.evidence.flight_dumps import FlightDump, parse_flight_dump
from aboard.core.evidence.nccl_ras import parse_ras_status
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.output_patterns import OutputPattern, PatternRole
from aboard.diagnoses.slurm import jobs
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.host import diagnoses as host
from aboard.doctor.logs.line_prefixes import parse_file_name
from aboard.doctor.logs.log_scanner import LogScanner
from aboard.doctor.logs.sighting import ScannedLog, Sighting
from aboard.doctor.logs.timestamps import parse_timestamp
from aboard.doctor.reports import recognize as formats
from aboard.doctor.reports.flight_recorder import judge_flight_dumps
from aboard.doctor.reports.gpu_reports import judge_gpu_query, judge_gpu_table
from aboard.doctor.reports.ras_json import list_ras_lines
from aboard.doctor.reports.recognize import FileFormat
from aboard.doctor.reports.slurm_reports import judge_accounting, judge_shown_jobs, judge_shown_nodes
from aboard.doctor.reports.stack_dumps import StackDump, judge_stacks, parse_stack_json, parse_stack_text

MOST_BYTES = 32 * 2**20
_MOST_TEXT = 4 * 2**20
_MOST_DUMPS, _MOST_FINDINGS = 20_000, 64
# In commands, where a report doesn't say which node it is from.
_NO_NODE = "NODE"
# What the zones of two clocks may differ: earlier trouble of a node is none of the run's.
_ZONES = 14 * 3600.0
_ROLES = {Severity.BLOCK: PatternRole.CAUSE, Severity.WARN: PatternRole.ODD, Severity.INFO: PatternRole.INFO}
# How Slurm ended a job: with a reason, and without one.
_SLURM_ROLES = {host.OOM_KILLS.code: PatternRole.CAUSE, jobs.ENDED.code: PatternRole.END}
_JUDGES: Mapping[FileFormat, Callable[[str, str], Iterable[tuple[Finding, float | None]]]] = {
    formats.GPU_TABLE: judge_gpu_table,
    formats.GPU_QUERY: judge_gpu_query,
    formats.JOBS_TABLE: judge_accounting,
    formats.SLURM_JOB: judge_shown_jobs,
    formats.SLURM_NODES: judge_shown_nodes,
}


class EvidenceFiles:
    """Takes the files of a case one after the other; `add_to` adds what reports say to what the scanner saw."""

    def __init__(self, scanner: LogScanner) -> None:
        self._scanner = scanner
        self._dumps: dict[int, FlightDump] = {}
        self._stacks: list[StackDump] = []
        self._sightings: list[Sighting] = []
        # By file: what it is, and whether it says that all is well; None where it can't say so.
        self._kinds: list[tuple[FileFormat, bool | None]] = []
        self._states: set[int] = set()
        self._began: list[float] = []

    def take(self, kind: FileFormat, head: bytes, data: bytes, number: int, name: str) -> str | None:
        """Takes a report, whole; None if its lines are to be scanned, else why it is not judged, "" if it is."""
        value = try_parse_json(data) if kind is formats.JSON and len(data) <= MOST_BYTES else None
        if kind is formats.JSON and value is None:
            kind = formats.LOG
        if not kind.whole:
            times = (parse_timestamp(line[:200].decode("utf-8", "replace")) for line in head.split(b"\n"))
            if kind is formats.LOG:
                self._began += [next((at for at in times if at is not None), float("inf"))]
            self._kinds.append((kind, kind in formats.STATES or None))
            self._states |= {number} if kind in formats.STATES else set()
            return None
        try:
            reason = decode_with(lambda raw: self._take(kind, raw, value, number, name), data)
        except DecodeError as error:
            if kind.lines:
                self._kinds.append((kind, None))
                return None
            return f"is a damaged {kind.name}, or none: {error}"
        return None if kind.lines else reason

    def add_to(self, log: ScannedLog) -> ScannedLog:
        """The case: the scanned lines, and the findings of reports as if they were messages among them."""
        for finding in (*judge_flight_dumps(self._dumps), *judge_stacks(self._stacks)):
            nodes = tuple(dict.fromkeys(log.by_rank[rank] for rank in finding.ranks if rank in log.by_rank))
            wait = PatternRole.INFO if finding.severity is Severity.INFO else PatternRole.WAIT
            self._add(replace(finding, nodes=nodes[:8]), 0, wait)
        sightings = [*log.sightings, *(replace(each, progress=log.progress) for each in self._sightings)]
        began = min(self._began, default=float("inf")) - _ZONES
        earlier = [each for each in sightings if each.file in self._states and (each.at or began) < began]
        for each in earlier if began < float("inf") else ():
            each.message = replace(each.message, role=PatternRole.INFO)
        return replace(
            log,
            sightings=sightings,
            kinds=tuple(kind.name for kind, _well in self._kinds),
            healthy=bool(self._kinds) and all(well for _kind, well in self._kinds),
            last=tuple(Untrusted(str(each)) for each in self._stacks[:8]) or log.last,
        )

    def _take(self, kind: FileFormat, data: bytes, value: Any, number: int, name: str) -> str:
        if kind is formats.FLIGHT:
            return self._add_dump(data, name)
        if kind is formats.JSON:
            return self._take_json(value, data, name)
        if len(data) > _MOST_TEXT:
            raise DecodeError("too long")
        node, rank = parse_file_name(name)
        text = data.decode("utf-8", "replace").replace("\r\n", "\n")
        well: bool | None = None
        if kind is formats.STACKS:
            self._stacks += parse_stack_text(text, rank)
        elif kind is formats.RAS:
            status = parse_ras_status(text.lstrip())
            bad = status is None or status.silent_count or status.dead_count or status.odd
            well = not (bad or re.search(r"^[ \d-]+ (?!RUNNING )[A-Z]+ +[A-Z,]+ *$", text, re.MULTILINE))
        else:
            found = list(islice(_JUDGES[kind](text, node or _NO_NODE), _MOST_FINDINGS))
            for finding, at in found:
                self._add(finding, number, _SLURM_ROLES.get(finding.code, _ROLES[finding.severity]), at)
            self._states.add(number)
            well = not found
        self._kinds.append((kind, well))
        return ""

    def _take_json(self, value: Any, data: bytes, name: str) -> str:
        keys = set(value) if isinstance(value, dict) else set()
        if {"entries", "version"} <= keys:
            return self._add_dump(data, name)
        if {"communicators", "nccl_version"} <= keys:
            lines = list_ras_lines(value)
            for line in lines:
                self._scanner.take(line.encode())
            self._kinds.append((formats.RAS, not lines))
        elif isinstance(value, list) and value and isinstance(value[0], dict) and "frames" in value[0]:
            self._stacks += parse_stack_json(value, parse_file_name(name)[1])
            self._kinds.append((formats.STACKS, None))
        else:
            return "is a trace of a profiler" if "traceEvents" in keys else "is a JSON document"
        return ""

    def _add_dump(self, data: bytes, name: str) -> str:
        """Its rank is the last number in its name, as for torch's own tool."""
        dump, numbers = parse_flight_dump(data), re.findall(r"\d{1,9}", name.rpartition("/")[2])
        if len(self._dumps) >= _MOST_DUMPS:
            raise DecodeError("one dump too many")
        self._dumps[int(numbers[-1]) if numbers else len(self._dumps)] = dump
        over = [entry.over for group in dump.groups for entry in group.entries]
        self._kinds.append((formats.FLIGHT, all(over) if over else None))
        return ""

    def _add(self, finding: Finding, number: int, role: PatternRole, at: float | None = None) -> None:
        finding = replace(finding, nodes=tuple(node for node in finding.nodes if node != _NO_NODE))
        sighting = Sighting(
            diagnosis=finding.diagnosis,
            message=OutputPattern("", role=role, weight=1 if role is PatternRole.END else 3, late=True),
            file=number,
            line=0,
            at=at,
            text=Untrusted(finding.seen),
            node=finding.nodes[0] if len(finding.nodes) == 1 else "",
            rank=finding.ranks[0] if len(finding.ranks) == 1 else None,
            finding=finding,
        )
        self._sightings.append(sighting)
