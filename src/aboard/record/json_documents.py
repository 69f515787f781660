"""The JSON documents of a run (plan, findings, check): written atomically, and retried after a full disk."""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from aboard.core.decoding import Lines, MaxLength, decode, try_parse_json
from aboard.core.evidence.verdict import Judgement, RuledOut
from aboard.diagnoses import NO_FIX, Finding, Severity
from aboard.diagnoses.catalogue import recall_diagnosis, recall_fix
from aboard.diagnoses.untrusted import encode_text
from aboard.durable_files import write_atomically
from aboard.lazy_dataclass import dataclass
from aboard.record.run_directory import PRIVATE_FILE

# Limits above any real run, and low enough to judge.
MOST_NODES, MOST_RANKS = 16_384, 32_768


@dataclass(frozen=True, kw_only=True)
class RecordedFinding:
    """A finding in its JSON form."""

    code: str
    severity: Literal["info", "warn", "block"]
    nodes: Annotated[tuple[str, ...], MaxLength(MOST_NODES)] = ()
    ranks: Annotated[tuple[int, ...], MaxLength(MOST_RANKS)] = ()
    seen: Lines = ""
    why: Lines = ""
    fix: Lines = ""
    consequences: "Annotated[tuple[RecordedFinding, ...], MaxLength(100)]" = ()

    def to_finding(self, *, own: bool = False) -> Finding:
        """Rebuilds the finding; with its fix only from the user's own record, since a bundle's author chooses it."""
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
    progress: Lines = ""
    advancing: bool = False


def recall_findings(recorded: Iterable[RecordedFinding], *, own: bool = False) -> tuple[Finding, ...]:
    return tuple(each.to_finding(own=own) for each in recorded)


def decode_findings(content: object, *, own: bool = False) -> tuple[Finding, ...]:
    """Decodes the valid findings of untrusted JSON."""
    return recall_findings(decode(Findings, content), own=own) if isinstance(content, list) else ()


class DocumentWriter:
    """Writes the latest version of each file; retries one that can't be written."""

    def __init__(self) -> None:
        self._waiting: dict[Path, bytes] = {}

    @property
    def waiting(self) -> int:
        """The number of files that still have to be written."""
        return len(self._waiting)

    def write(self, path: Path, content: Any, *, indent: int | None = 1) -> None:
        """Writes a document; large ones need `indent=None`, which json encodes in C."""
        text = json.dumps(content, indent=indent, ensure_ascii=False, default=encode_text) + "\n"
        self._waiting[path] = text.encode("utf-8", "backslashreplace")
        self.retry()

    def remove(self, path: Path) -> None:
        self._waiting.pop(path, None)
        with suppress(OSError):
            path.unlink()

    def retry(self) -> None:
        for path, data in list(self._waiting.items()):
            with suppress(OSError):
                write_atomically(path, data, sync=False, mode=PRIVATE_FILE)
                del self._waiting[path]


def read_document(path: Path) -> Any:
    """The parsed file; None if it doesn't exist or isn't JSON."""
    try:
        return try_parse_json(path.read_bytes())
    except OSError:
        return None


def find_damaged(*paths: Path) -> tuple[str, ...]:
    """The names of those files that exist and can't be read."""
    return tuple(path.name for path in paths if path.exists() and read_document(path) is None)


def read_training(plan: Any) -> dict[str, Any] | None:
    """The training settings in a recorded plan; None for a run that is not a training run."""
    match plan:
        case {"env": {"ABOARD_TRAINING": str(text)}}:
            training = try_parse_json(text)
            return training if isinstance(training, dict) and isinstance(training.get("output_dir"), str) else None
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
        "progress": judgement.progress,
        "advancing": judgement.advancing,
    }


def decode_judgement(content: object) -> Judgement:
    """Decodes the JSON form of a judgement."""
    document = decode(_JudgementDocument, content)
    return Judgement(
        findings=recall_findings(document.findings, own=True),
        ruled_out=tuple(RuledOut(what=what, why=reason) for what, reason in document.ruled_out),
        seconds=document.seconds,
        quiet=document.quiet,
        progress=document.progress,
        advancing=document.advancing,
    )


def read_findings(path: Path) -> list[Finding]:
    """The findings in the file; an empty list if it can't be read."""
    return list(decode_findings(read_document(path), own=True))
