"""The whole documents of a run: plan, findings, check. Written all or not at all, and again when the disk is full."""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from aboard.core.verdict import RuledOut, Why
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.catalogue import recall_diagnosis, recall_fix
from aboard.record.places import PRIVATE_FILE


class Documents:
    """The latest version of each file; one that can't be written is tried again."""

    def __init__(self) -> None:
        self._waiting: dict[Path, bytes] = {}

    @property
    def waiting(self) -> int:
        """How many files are behind what they should say."""
        return len(self._waiting)

    def write(self, path: Path, content: Any, *, indent: int | None = 1) -> None:
        """Large ones go without an indent: json writes those in C."""
        text = json.dumps(content, indent=indent, ensure_ascii=False, default=str) + "\n"
        self._waiting[path] = text.encode("utf-8", "backslashreplace")
        self.retry()

    def remove(self, path: Path) -> None:
        self._waiting.pop(path, None)
        with suppress(OSError):
            path.unlink()

    def retry(self) -> None:
        for path, data in list(self._waiting.items()):
            if _write_whole(path, data):
                del self._waiting[path]


def read_document(path: Path) -> Any:
    """What the file says; None when it isn't there, or is no JSON."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def findings_document(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [
        {
            "code": finding.code,
            "severity": finding.severity.word,
            "nodes": list(finding.nodes),
            "ranks": list(finding.ranks),
            "seen": finding.seen,
            "why": finding.why,
            "fix": finding.fix,
            "consequences": findings_document(finding.consequences),
        }
        for finding in findings
    ]


def why_words(why: Why) -> dict[str, Any]:
    return {
        "findings": findings_document(why.findings),
        "ruled_out": [[each.what, each.why] for each in why.ruled_out],
        "seconds": why.seconds,
        "quiet": why.quiet,
    }


def why_of(given: Mapping[str, Any]) -> Why:
    """From what `why_words` made; both ends are ours, and of one version."""
    return Why(
        findings=tuple(_finding(each) for each in given["findings"]),
        ruled_out=tuple(RuledOut(what=what, why=why) for what, why in given["ruled_out"]),
        seconds=given["seconds"],
        quiet=given["quiet"],
    )


def read_findings(path: Path) -> list[Finding]:
    """The findings as they were written; none when there are none to read."""
    document = read_document(path)
    return [_finding(each) for each in document] if isinstance(document, list) else []


def _finding(given: Mapping[str, Any]) -> Finding:
    return Finding(
        diagnosis=recall_diagnosis(given["code"]),
        severity=Severity[given["severity"].upper()],
        nodes=tuple(given["nodes"]),
        ranks=tuple(given["ranks"]),
        seen=given["seen"],
        why=given["why"],
        fix=recall_fix(given["code"], given["fix"]),
        consequences=tuple(_finding(each) for each in given["consequences"]),
    )


def _write_whole(path: Path, data: bytes) -> bool:
    draft = path.with_name(f".{path.name}.new")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        return False
    return True
