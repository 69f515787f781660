"""The recorded part of the fault bench: logs of every family, with the verdict that each must get.

`python bench/faults_recorded.py [--json FILE]`. A third of the cases, chosen by the hash of their names, is held out:
rules are not written for them, and they have their own figure. Exit 0 only if every figure holds.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from aboard.commands.why.log_files import diagnose_logs
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.catalogue import all_diagnoses
from figures import Figures, main

CASES = Path(__file__).parents[1] / "tests" / "cases" / "logs"
BAR = 0.95


@dataclass(frozen=True, kw_only=True)
class Case:
    """A directory of logs and the verdict that they must get; a code of None means healthy."""

    name: str
    group: str
    logs: tuple[str, ...]
    code: str | None
    node: str | None = None
    rank: int | None = None

    @property
    def held_out(self) -> bool:
        return sha256(self.name.encode()).digest()[0] % 3 == 0


@dataclass(frozen=True, kw_only=True)
class ScoredCase:
    """A case and its findings."""

    case: Case
    findings: tuple[Finding, ...]

    @property
    def right(self) -> bool:
        """Whether the first finding has the code, node and rank; a link has two ends, so at most two nodes."""
        case = self.case
        alarms = [finding for finding in self.findings if finding.severity > Severity.INFO]
        if case.code is None or not alarms:
            return case.code is None and not alarms
        first = alarms[0]
        node = case.node is None or (case.node in first.nodes and len(first.nodes) <= 2)
        rank = case.rank is None or first.ranks == (case.rank,)
        return first.diagnosis == all_diagnoses()[case.code] and node and rank

    def __str__(self) -> str:
        got = self.findings[0] if self.findings else None
        said = f"{got.code} {','.join(got.nodes)} {got.ranks}" if got else "nothing"
        return (
            f"{self.case.group}/{self.case.name}: wanted {self.case.code} {self.case.node} {self.case.rank}, got {said}"
        )


def load_cases(folder: Path = CASES) -> list[Case]:
    found = []
    for path in sorted(folder.glob("*/*/expect.json")):
        logs = sorted(str(log) for log in path.parent.iterdir() if log.name != path.name)
        wanted = json.loads(path.read_text("utf-8"))
        found.append(Case(name=path.parent.name, group=path.parent.parent.name, logs=tuple(logs), **wanted))
    return found


def score_cases(wanted: Iterable[Case]) -> list[ScoredCase]:
    return [ScoredCase(case=case, findings=diagnose_logs(case.logs).findings) for case in wanted]


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001, ARG001 - the bench's only option; it is always quick
    """Measures wrong verdicts on recorded cases, seen and held out, and false alarms on healthy logs."""
    scored = score_cases(load_cases())
    sick = [each for each in scored if each.case.code is not None]
    for group in ("gpu", "plain"):
        for held_out in (False, True):
            part = [each for each in sick if each.case.group == group and each.case.held_out is held_out]
            wrong = [each for each in part if not each.right]
            name = f"wrong verdicts, {group}, {'held out' if held_out else 'seen'} ({len(part)} cases)"
            figures.add(name, len(wrong) / len(part), 1 - BAR, note=f"{len(part) - len(wrong)} of {len(part)} correct")
    healthy = [each for each in scored if each.case.code is None]
    false = [each for each in healthy if not each.right]
    figures.add(f"false alarms on healthy logs ({len(healthy)})", len(false), 0)
    for each in scored:
        if not each.right:
            print("missed:", each)


if __name__ == "__main__":
    main("faults, recorded", measure)
