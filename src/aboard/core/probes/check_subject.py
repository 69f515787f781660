"""A rule: a pure function from facts to findings, and the subject that it belongs to."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts
from aboard.core.probes.multi_node_probe import MultiNodeProbe, Script
from aboard.core.probes.probe import Probe
from aboard.diagnoses import Diagnosis, Finding
from aboard.lazy_dataclass import dataclass

Rule: TypeAlias = Callable[[Facts], Iterator[Finding]]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What one package in `checks/` adds: probes, rules that judge their replies, and the diagnosis of each code.

    `untested` maps each node that could not be tested to the reason: no finding there is not a pass. `asked` is the
    command that runs this check, if it isn't `aboard check --only`. A subject that does not apply to a cluster is left
    out.
    """

    name: str
    title: str
    probes: tuple[Probe[Any], ...]
    rules: tuple[Rule, ...]
    multi_node_probes: tuple[MultiNodeProbe[Any], ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    untested: Callable[[Facts], Mapping[str, str]] = lambda _facts: {}
    asked: str = ""
    applies: Callable[[Cluster], bool] = lambda _cluster: True

    @property
    def command(self) -> str:
        """The command that runs this check."""
        return self.asked or f"aboard check --only {self.name}"

    @property
    def is_check(self) -> bool:
        """Whether it is checked before a launch; else it is diagnosed afterwards, or a command's error."""
        return not self.asked or bool(self.probes or self.rules)

    def judge(self, facts: Facts) -> list[Finding]:
        return [finding for rule in self.rules for finding in rule(facts)]

    def with_variables(self, env: Mapping[str, str]) -> "Subject":
        """The subject of a launch: each node's `env` has the variables of its ranks, when it is asked."""

        def extend(node: Node) -> Node:
            container = node.container and replace(node.container, env={**node.container.env, **env})
            return replace(node, env={**node.env, **env}, container=container)

        def extend_question(probe: Probe[Any]) -> Probe[Any]:
            ask = probe.question
            return replace(probe, question=lambda node: ask(extend(node))) if callable(ask) else probe

        def extend_script(probe: MultiNodeProbe[Any]) -> MultiNodeProbe[Any]:
            def script(facts: Facts) -> Script[Any]:
                nodes = tuple(map(extend, facts.cluster))
                return probe.script(replace(facts, cluster=replace(facts.cluster, nodes=nodes)))

            return replace(probe, script=script)

        return replace(
            self,
            probes=tuple(map(extend_question, self.probes)),
            multi_node_probes=tuple(map(extend_script, self.multi_node_probes)),
        )
