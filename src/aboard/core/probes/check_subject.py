"""A rule: a pure function from facts to findings, and the subject that it belongs to."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from aboard.core.probes.facts import Facts
from aboard.core.probes.multi_node_probe import MultiNodeProbe
from aboard.core.probes.probe import Probe
from aboard.diagnoses import Diagnosis, Finding
from aboard.lazy_dataclass import dataclass

Rule: TypeAlias = Callable[[Facts], Iterator[Finding]]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What one file in `checks/` adds: questions to ask, rules to judge the answers, and the story of each code.

    `untested` names the nodes on which there was nothing to test, or no way to test it, each with the reason: no
    finding there is no pass. `asked` is what to type to have it judged, where that isn't a check.
    """

    name: str
    title: str
    probes: tuple[Probe[Any], ...]
    rules: tuple[Rule, ...]
    multi_node_probes: tuple[MultiNodeProbe[Any], ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    untested: Callable[[Facts], Mapping[str, str]] = lambda _facts: {}
    asked: str = ""

    @property
    def command(self) -> str:
        """What to type to have it judged."""
        return self.asked or f"aboard check --only {self.name}"

    def judge(self, facts: Facts) -> list[Finding]:
        return [finding for rule in self.rules for finding in rule(facts)]
