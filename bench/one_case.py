"""One case of the check bench: inject the fault, check, type the printed fixes, check again."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

from aboard.sandbox import Host, Sandbox
from aboard.sandbox.faults import Fault, heal_fault, inject_fault
from check_cases import WORKDIR, Case
from mishaps import Mishap
from typed_fixes import CONFIG, Typed, type_fix, write_config

_CONFIG = """\
cluster:
  fabric_address: "{name}i"
  nodes:
    - name: n1
      slots: 2
    - name: n2
      slots: 2
    - name: n3
      slots: 2
    - name: n4
      slots: 2
"""
Findings = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The findings of the check, the lines typed, and the findings of the next check."""

    case: Case
    seconds: float
    findings: Findings
    typed: list[Typed]
    after: Findings

    @property
    def missed(self) -> list[tuple[str, tuple[str, ...]]]:
        """Expected findings that are missing; the first expected one must also come first."""
        told = [(each["code"], tuple(sorted(each["nodes"]))) for each in self.findings]
        wanted = [(self.case.or_codes.get(code, code), nodes) for code, nodes in self.case.named]
        first = told[:1] not in (list(self.case.named[:1]), wanted[:1])
        return [
            pair
            for number, (pair, other) in enumerate(zip(self.case.named, wanted, strict=True))
            if not {pair, other} & set(told) or (number == 0 and first)
        ]

    @property
    def unfolded(self) -> bool:
        """Whether a consequence is listed beside its cause instead of folded into it."""
        above = [each for each in self.findings if each["severity"] != "info"]
        return self.case.folds and (len(above) != 1 or not above[0]["consequences"])

    @property
    def left(self) -> list[str]:
        """Findings that remain: anything above info, and the expected codes."""
        codes = {code for code, _ in self.case.named}
        return [format_finding(each) for each in self.after if each["severity"] != "info" or each["code"] in codes]

    @property
    def well(self) -> bool:
        return not (self.missed or self.unfolded or self.left)


def try_case(case: Case, name: str) -> Outcome:
    """Runs the case on fresh hosts."""
    with Sandbox.up(name, nodes=4, fabric=True, temporary=True) as box:
        _prepare_hosts(box, case)
        for where, fault in case.broken:
            if isinstance(fault, Mishap):
                fault.inject(box, box.host(where))
            else:
                inject_fault(box, box.host(where), fault)
        flags = [] if case.full else ["--quick"]
        began = monotonic()
        findings = run_check(box.head, *flags)
        seconds = monotonic() - began
        typed = [] if case.by_hand else list(_apply_fixes(box, case, findings))
        if case.by_hand:
            _heal_faults(box, case)
        return Outcome(case=case, seconds=seconds, findings=findings, typed=typed, after=run_check(box.head, *flags))


def run_check(head: Host, *words: str) -> Findings:
    """The findings of `aboard check`, run as the head's user."""
    done = head.run(["aboard", "check", "--json", *words], timeout=180)
    assert done.stdout, f"aboard check failed: {done.stderr[-2000:]}"
    findings: Findings = json.loads(done.stdout)["findings"]
    return findings


def format_finding(finding: dict[str, Any]) -> str:
    return f"{finding['code']}@{','.join(finding['nodes'])}"


def _prepare_hosts(box: Sandbox, case: Case) -> None:
    box.head.run(["sh", "-c", f"cat > {CONFIG}"], input=_CONFIG)
    for whose, line in (("under cluster:", f"workdir: {case.workdir}"), *case.settings):
        write_config(box.head, whose, line)
    for host in box.nodes:
        host.run(["sh", "-c", f"mkdir -p {WORKDIR}; cd {WORKDIR}; {case.files}"])


def _apply_fixes(box: Sandbox, case: Case, findings: Findings) -> Iterator[Typed]:
    """Types the fixes of the expected findings only."""
    codes = {code for pair in case.named for code in (pair[0], case.or_codes.get(pair[0]))}
    for finding in findings:
        if finding["code"] in codes:
            yield from type_fix(box, finding["fix"])


def _heal_faults(box: Sandbox, case: Case) -> None:
    for where, fault in reversed(case.broken):
        if isinstance(fault, Fault):
            heal_fault(box, box.host(where), fault)
