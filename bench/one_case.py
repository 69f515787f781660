"""One case of the check's table: break it, check, type what the findings say, and check again."""

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
    """What the check said of it, what was typed then, and what the next check still said."""

    case: Case
    seconds: float
    findings: Findings
    typed: list[Typed]
    after: Findings

    @property
    def missed(self) -> list[tuple[str, tuple[str, ...]]]:
        """What should have been named and wasn't; the first of it must be the first of all."""
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
        """Whether a consequence stands beside its cause instead of under it."""
        above = [each for each in self.findings if each["severity"] != "info"]
        return self.case.folds and (len(above) != 1 or not above[0]["consequences"])

    @property
    def left(self) -> list[str]:
        """What is still said: anything above info, and what was named itself."""
        codes = {code for code, _ in self.case.named}
        return [word(each) for each in self.after if each["severity"] != "info" or each["code"] in codes]

    @property
    def well(self) -> bool:
        return not (self.missed or self.unfolded or self.left)


def try_case(case: Case, name: str) -> Outcome:
    """On hosts of its own, which nobody has broken or mended before."""
    with Sandbox.up(name, nodes=4, fabric=True, temporary=True) as box:
        _prepare(box, case)
        for where, fault in case.broken:
            if isinstance(fault, Mishap):
                fault.inject(box, box.host(where))
            else:
                inject_fault(box, box.host(where), fault)
        flags = [] if case.full else ["--quick"]
        began = monotonic()
        findings = check(box.head, *flags)
        seconds = monotonic() - began
        typed = [] if case.by_hand else list(_mend(box, case, findings))
        if case.by_hand:
            _heal(box, case)
        return Outcome(case=case, seconds=seconds, findings=findings, typed=typed, after=check(box.head, *flags))


def check(head: Host, *words: str) -> Findings:
    """The findings of `aboard check`, as the user of the head sees them."""
    done = head.run(["aboard", "check", "--json", *words], timeout=180)
    assert done.stdout, f"aboard check failed: {done.stderr[-2000:]}"
    findings: Findings = json.loads(done.stdout)["findings"]
    return findings


def word(finding: dict[str, Any]) -> str:
    return f"{finding['code']}@{','.join(finding['nodes'])}"


def _prepare(box: Sandbox, case: Case) -> None:
    box.head.run(["sh", "-c", f"cat > {CONFIG}"], input=_CONFIG)
    for whose, line in (("under cluster:", f"workdir: {case.workdir}"), *case.settings):
        write_config(box.head, whose, line)
    for host in box.nodes:
        host.run(["sh", "-c", f"mkdir -p {WORKDIR}; cd {WORKDIR}; {case.files}"])


def _mend(box: Sandbox, case: Case, findings: Findings) -> Iterator[Typed]:
    """Types the fixes of what must be named, and of nothing else."""
    codes = {code for pair in case.named for code in (pair[0], case.or_codes.get(pair[0]))}
    for finding in findings:
        if finding["code"] in codes:
            yield from type_fix(box, finding["fix"])


def _heal(box: Sandbox, case: Case) -> None:
    for where, fault in reversed(case.broken):
        if isinstance(fault, Fault):
            heal_fault(box, box.host(where), fault)
