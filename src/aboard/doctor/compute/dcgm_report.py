"""NVIDIA's own diagnostics, `dcgmi diag -r 1`, where DCGM is installed and its host engine runs."""

import re
from collections.abc import Iterator
from typing import Any

from aboard.core.decoding import parse_json
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeCommand, ProbeParseError
from aboard.diagnoses.untrusted import escape_text
from aboard.doctor.shared.answer_text import NOT_INSTALLED, require_output
from aboard.lazy_dataclass import dataclass

_DEEPEST, _MOST = 12, 20
_NO_ENGINE = re.compile(r"unable to (?:establish a connection|connect)|host engine|connection invalid", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class DcgmReport:
    """Whether it ran, and if not, why; what failed, as "PCIe, GPU 3: reason"."""

    ran: bool
    why: str = ""
    failed: tuple[str, ...] = ()


def parse_dcgm(answer: ProbeAnswer) -> DcgmReport:
    """Versions 3 and 4 name the report and the GPU of a result differently, so every failed result is looked for."""
    output = require_output(answer, "dcgmi diag timed out")
    start, end = output.stdout.find("{"), output.stdout.rfind("}")
    if output.code == NOT_INSTALLED:
        return DcgmReport(ran=False, why="not run: DCGM is not installed")
    if start < 0:
        if _NO_ENGINE.search(output.stdout + output.stderr):
            return DcgmReport(ran=False, why="not run: DCGM's host engine does not run")
        raise ProbeParseError(f"dcgmi diag ended with exit code {output.code} and printed no report")
    try:
        document = parse_json(output.stdout[start : end + 1])
    except ValueError:
        raise ProbeParseError("the report of dcgmi diag can't be parsed") from None
    return DcgmReport(ran=True, failed=tuple(dict.fromkeys(_list_failures(document, "a test", _DEEPEST)))[:_MOST])


def _list_failures(part: Any, name: str, depth: int) -> Iterator[str]:
    if depth and isinstance(part, list):
        for each in part:
            yield from _list_failures(each, name, depth - 1)
    elif depth and isinstance(part, dict):
        name = part["name"] if isinstance(part.get("name"), str) else name
        if str(part.get("status", "")).lower() == "fail":
            gpu = next((part[key] for key in ("gpu_id", "gpu_ids", "entity_id") if key in part), None)
            where = "" if gpu is None else f", GPU {escape_text(str(gpu), 40)}"
            yield f"{escape_text(name, 60)}{where}: {_describe_reason(part)}"
        for each in part.values():
            yield from _list_failures(each, name, depth - 1)


def _describe_reason(result: dict[str, Any]) -> str:
    """The first warning, which is a text, or an object with one."""
    reason = result.get("warnings") or result.get("info") or "no reason given"
    while isinstance(reason, (list, dict)) and reason:
        reason = reason[0] if isinstance(reason, list) else reason.get("warning", next(iter(reason.values())))
    return escape_text(str(reason), 200)


DCGM = Probe(
    name="dcgm",
    question=ProbeCommand(argv=("dcgmi", "diag", "-r", "1", "-j"), timeout=30),
    parse=parse_dcgm,
    quick=False,
)
