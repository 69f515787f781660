"""The whole documents of a run: plan, findings, check. Written all or not at all, and again when the disk is full."""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from aboard.core.decoding import Lines, MaxLength, decode
from aboard.core.evidence.verdict import Judgement, RuledOut
from aboard.diagnoses import NO_FIX, Finding, Severity
from aboard.diagnoses.catalogue import recall_diagnosis, recall_fix
from aboard.diagnoses.untrusted import encode_text
from aboard.lazy_dataclass import dataclass
from aboard.record.run_directory import PRIVATE_FILE

# More than any run of ours, and few enough to be judged.
MOST_NODES, MOST_RANKS = 16_384, 32_768


@dataclass(frozen=True, kw_only=True)
class RecordedFinding:
    """A finding as JSON holds it."""

    code: str
    severity: Literal["info", "warn", "block"]
    nodes: Annotated[tuple[str, ...], MaxLength(MOST_NODES)] = ()
    ranks: Annotated[tuple[int, ...], MaxLength(MOST_RANKS)] = ()
    seen: Lines = ""
    why: Lines = ""
    fix: Lines = ""
    consequences: "Annotated[tuple[RecordedFinding, ...], MaxLength(100)]" = ()

    def recall(self, *, own: bool = False) -> Finding:
        """Its fix is recalled only from the user's own record: whoever packed a bundle chose what is in it."""
        return Finding(
            diagnosis=recall_diagnosis(self.code),
            severity=Severity[self.severity.upper()],
            nodes=self.nodes,
            ranks=self.ranks,
            seen=self.seen,
            why=self.why,
            fix=recall_fix(self.code, self.fix) if own else NO_FIX,
            consequences=recall_findings(self.consequences, own=own),
        )


Findings = Annotated[tuple[RecordedFinding, ...], MaxLength(100)]


@dataclass(frozen=True, kw_only=True)
class _JudgementDocument:
    findings: Findings
    ruled_out: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0
    quiet: float | None = None


def recall_findings(recorded: Iterable[RecordedFinding], *, own: bool = False) -> tuple[Finding, ...]:
    return tuple(each.recall(own=own) for each in recorded)


def decode_findings(content: object, *, own: bool = False) -> tuple[Finding, ...]:
    """Those that are findings, of what may be anybody's JSON."""
    return recall_findings(decode(Findings, content), own=own) if isinstance(content, list) else ()


class DocumentWriter:
    """The latest version of each file; one that can't be written is tried again."""

    def __init__(self) -> None:
        self._waiting: dict[Path, bytes] = {}

    @property
    def waiting(self) -> int:
        """How many files are behind what they should say."""
        return len(self._waiting)

    def write(self, path: Path, content: Any, *, indent: int | None = 1) -> None:
        """Large ones go without an indent: json writes those in C."""
        text = json.dumps(content, indent=indent, ensure_ascii=False, default=encode_text) + "\n"
        self._waiting[path] = text.encode("utf-8", "backslashreplace")
        self.retry()

    def remove(self, path: Path) -> None:
        self._waiting.pop(path, None)
        with suppress(OSError):
            path.unlink()

    def retry(self) -> None:
        for path, data in list(self._waiting.items()):
            if _write_atomically(path, data):
                del self._waiting[path]


def read_document(path: Path) -> Any:
    """What the file says; None when it isn't there, or is no JSON."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def build_findings_document(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [
        {
            "code": finding.code,
            "severity": finding.severity.word,
            "nodes": list(finding.nodes),
            "ranks": list(finding.ranks),
            "seen": finding.seen,
            "why": finding.why,
            "fix": finding.fix,
            "consequences": build_findings_document(finding.consequences),
        }
        for finding in findings
    ]


def encode_judgement(judgement: Judgement) -> dict[str, Any]:
    return {
        "findings": build_findings_document(judgement.findings),
        "ruled_out": [[each.what, each.why] for each in judgement.ruled_out],
        "seconds": judgement.seconds,
        "quiet": judgement.quiet,
    }


def decode_judgement(content: object) -> Judgement:
    """From what `why_words` made."""
    document = decode(_JudgementDocument, content)
    return Judgement(
        findings=recall_findings(document.findings, own=True),
        ruled_out=tuple(RuledOut(what=what, why=reason) for what, reason in document.ruled_out),
        seconds=document.seconds,
        quiet=document.quiet,
    )


def read_findings(path: Path) -> list[Finding]:
    """The findings as they were written; none when there are none to read."""
    return list(decode_findings(read_document(path), own=True))


def _write_atomically(path: Path, data: bytes) -> bool:
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
