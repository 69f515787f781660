"""`aboard why --bundle`: a run that somebody else packed, judged again. What is in it is data, and may be hostile.

Nothing is unpacked to a disk: members are read one after the other, up to a limit, and only those with plain names.
"""

import gzip
import json
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from aboard.core.errors import AboardError
from aboard.core.event import Event
from aboard.core.evidence import Evidence
from aboard.core.finding import Finding, Severity
from aboard.core.node import Node
from aboard.core.plan import Master, NodePlan, Plan, Start
from aboard.core.program import Kind, Program
from aboard.core.run import Run
from aboard.core.words import visible
from aboard.flows.bundle import FORMAT, LOGS, MANIFEST, ROOT
from aboard.verdicts.ending import ending
from aboard.verdicts.logs.judge import judge
from aboard.verdicts.logs.reader import Reader

MOST_PACKED = 256 * 2**20
MOST_UNPACKED = 256 * 2**20
_MOST_MEMBERS = 100
_MOST_RANKS = 100_000
_MOST_TEXT = 20_000
_TAIL = 40
# Verdicts that a rank's own words may say more of.
_GENERAL = ("run-raised", "run-exited", "run-killed")


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What the archive is of, and what its evidence comes to by the rules of this version."""

    run: str
    version: str
    findings: tuple[Finding, ...]


class _Bounded:
    """Reads up to the limit: a header can claim any size, and tarfile would read all of it."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self._left = MOST_UNPACKED + 2**20

    def read(self, size: int) -> bytes:
        data = self._file.read(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise tarfile.ReadError("it unpacks to too much")
        return data


def replay_bundle(path: Path) -> Replayed:
    parts = _read(path)
    manifest = _json(parts, MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _broken(path, "it has no manifest of a kind that this version knows")
    try:
        findings = _judged(parts, str(manifest.get("run", "")))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        # The fold and the rules trust what a conductor wrote, and this may be anything.
        raise _broken(path, f"what it holds can't be judged: {type(error).__name__}") from None
    return Replayed(
        run=visible(str(manifest.get("run", ""))), version=visible(str(manifest.get("aboard", ""))), findings=findings
    )


def _read(path: Path) -> dict[str, bytes]:
    """The members with a plain name right under the root, as bytes; anything else in the archive is passed by."""
    parts: dict[str, bytes] = {}
    room = MOST_UNPACKED
    try:
        if path.stat().st_size > MOST_PACKED:
            raise _broken(path, f"it has more than {MOST_PACKED >> 20} MB")
        with gzip.open(path) as zipped, tarfile.open(fileobj=cast("Any", _Bounded(zipped)), mode="r|") as tar:
            for number, member in enumerate(tar):
                folder, _, name = member.name.partition("/")
                room -= max(0, member.size)
                if number >= _MOST_MEMBERS or room < 0:
                    raise _broken(path, f"it unpacks to more than {MOST_UNPACKED >> 20} MB, or to too many files")
                file = tar.extractfile(member) if member.isreg() and folder == ROOT and _plain(name) else None
                if file is not None:
                    parts[name] = file.read(member.size)
    except FileNotFoundError:
        raise AboardError("bundle-none", f"there is no {path}", fix="aboard bundle RUN    # makes one") from None
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise _broken(path, str(error)) from None
    return parts


def _plain(name: str) -> bool:
    return name.replace(".", "", 1).replace("-", "").replace("_", "").isalnum() and not name.startswith(".")


def _judged(parts: Mapping[str, bytes], run: str) -> tuple[Finding, ...]:
    lines = list(_entries(parts, LOGS))
    folded = Run.replay(run, _events(parts))
    findings: list[Finding] = []
    plan = _plan(_json(parts, "plan.json"), run)
    if plan is not None:
        findings = ending(Evidence(plan=plan, run=folded, tails=_tails(lines), stacks=_stacks(parts)))
    findings = findings or [_finding(each) for each in _listed(_json(parts, "findings.json"))]
    if not findings or findings[0].code in _GENERAL:
        told = _of_logs(lines)
        known = {finding.code for finding in findings}
        findings += [each for each in told if each.code not in known and each.severity > Severity.INFO]
    return tuple(findings)


def _of_logs(lines: list[dict[str, Any]]) -> list[Finding]:
    reader = Reader()
    reader.begin(LOGS)
    for line in sorted(lines, key=lambda line: float(line.get("at", 0.0))):
        reader.take(f"{line.get('node', '')}: [rank{int(line.get('rank', 0))}]: {line.get('text', '')}".encode())
    return judge(reader.reading())


def _plan(given: Any, run: str) -> Plan | None:
    """Who had which ranks: all that a verdict asks of a plan."""
    if not isinstance(given, dict):
        return None
    nodes = _listed(given.get("nodes"))
    if sum(len(_listed(node.get("starts"))) for node in nodes) > _MOST_RANKS:
        return None
    parts = tuple(
        NodePlan(
            node=Node(name=_text(node.get("name"))),
            starts=tuple(
                Start(child=_text(start.get("child")), argv=(), rank=int(start.get("rank") or 0))
                for start in _listed(node.get("starts"))
            ),
        )
        for node in nodes
    )
    if not parts:
        return None
    program = Program(kind=Kind.SCRIPT, target="")
    return Plan(run=run, program=program, master=Master(node=parts[0].node.name, address=""), parts=parts)


def _events(parts: Mapping[str, bytes]) -> Iterator[Event]:
    for entry in _entries(parts, "events.jsonl"):
        if "kind" in entry:
            data = entry.get("data")
            yield Event(
                node=_text(entry.get("node")),
                seq=int(entry.get("seq", 0)),
                at=float(entry.get("at", 0.0)),
                kind=_text(entry["kind"]),
                child=_text(entry.get("child")),
                rank=entry.get("rank") if isinstance(entry.get("rank"), int) else None,
                data=data if isinstance(data, dict) else {},
            )


def _tails(lines: list[dict[str, Any]]) -> dict[int, tuple[str, ...]]:
    tails: dict[int, list[str]] = {}
    for line in lines:
        if line.get("stream") == "stderr":
            tails.setdefault(int(line.get("rank", 0)), []).append(_text(line.get("text")))
    return {rank: tuple(said[-_TAIL:]) for rank, said in tails.items()}


def _stacks(parts: Mapping[str, bytes]) -> dict[int, str]:
    given = _json(parts, "stacks.json")
    return {int(rank): _text(text) for rank, text in given.items()} if isinstance(given, dict) else {}


def _finding(given: Mapping[str, Any]) -> Finding:
    return Finding(
        code=_text(given.get("code")),
        severity=Severity[_text(given.get("severity")).upper()],
        nodes=tuple(_text(node) for node in given.get("nodes", ())),
        ranks=tuple(int(rank) for rank in given.get("ranks", ())),
        seen=_text(given.get("seen")),
        why=_text(given.get("why")),
        fix=_text(given.get("fix")),
    )


def _entries(parts: Mapping[str, bytes], name: str) -> Iterator[dict[str, Any]]:
    for line in parts.get(name, b"").splitlines():
        entry = _parsed(line)
        if isinstance(entry, dict):
            yield entry


def _json(parts: Mapping[str, bytes], name: str) -> Any:
    return _parsed(parts[name]) if name in parts else None


def _parsed(data: bytes) -> Any:
    """The value, or None for what is no JSON, or is nested deeper than any of ours."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _listed(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    """Words that a terminal can be given: on lines, without what it would obey."""
    if not isinstance(value, str):
        return ""
    return "\n".join(visible(line, _MOST_TEXT) for line in value[:_MOST_TEXT].splitlines())


def _broken(path: Path, why: str) -> AboardError:
    return AboardError(
        "bundle-broken", f"{path} is no bundle that can be read: {visible(why)}", fix="aboard bundle RUN    # makes one"
    )
