"""A check as an HTML page: findings, subjects, nodes, the bandwidth of every link, and the collectives."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from time import time
from typing import Any

from aboard import __version__
from aboard.commands.check.node_table import TRAITS, collect_traits
from aboard.commands.shared.findings.subject_results import SubjectResult
from aboard.commands.shared.json_output import to_plain_value
from aboard.commands.shared.page.render_page import render_page
from aboard.commands.shared.page.write_page import list_users, write_page
from aboard.core.cluster.contact import ReachedNode
from aboard.core.probes.facts import Facts
from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.diagnoses import Finding
from aboard.doctor.collective.multi_node_probe import COLLECTIVE, CollectiveResult
from aboard.doctor.network.link_rates import RATES, LinkRates

_BYTES_PER_MBIT = 125_000
# More names don't fit beside each other.
_MOST_NODES = 64


def write_check_page(
    path: Path, facts: Facts, outcomes: Iterable[SubjectResult], findings: Sequence[Finding], seconds: float
) -> None:
    """Writes the page, readable only by its owner, without secrets and user names."""
    scrub = SecretScrubber(users=list_users())
    text = render_check(facts, outcomes, findings, seconds, scrub)
    write_page(path, text.encode("utf-8", "backslashreplace"), run="RUN")


def render_check(
    facts: Facts,
    outcomes: Iterable[SubjectResult],
    findings: Sequence[Finding],
    seconds: float,
    scrubber: SecretScrubber,
) -> str:
    """The page of a check, scrubbed like a bundle."""
    check = {
        "source": to_plain_value(facts.cluster.source),
        "seconds": seconds,
        "findings": [_describe_finding(finding) for finding in findings],
        "subjects": [_describe_subject(each) for each in outcomes],
        "columns": ["node", "reached", *TRAITS],
        "nodes": _list_nodes(facts),
        "links": _describe_links(facts),
        "collectives": _list_collectives(facts),
    }
    page = {"schema": 1, "aboard": __version__, "made": round(time(), 3), "check": scrubber.value(check), "runs": []}
    removed = {kind: count for kind, count in sorted(scrubber.removed.items()) if count}
    return render_page({**page, "removed": removed}, "check – Aboard")


def _describe_finding(finding: Finding) -> dict[str, Any]:
    plain: dict[str, Any] = to_plain_value(finding)
    shown = {name: plain[name] for name in ("severity", "nodes", "seen", "why", "fix")}
    return {**shown, "code": finding.code, "title": to_plain_value(finding.diagnosis.title)}


def _describe_subject(result: SubjectResult) -> dict[str, Any]:
    untested = "; ".join(f"{name}: {why}" for name, why in result.untested.items())
    plain: dict[str, Any] = to_plain_value({"status": result.status, "reason": result.reason or untested})
    return {"name": result.subject.name, **plain}


def _list_nodes(facts: Facts) -> list[list[str]]:
    """A row for each node: its name, whether it was reached, and its traits."""
    reached = {name: contact for name, contact in facts.contacts.items() if isinstance(contact, ReachedNode)}
    traits = collect_traits(facts, reached)
    return [
        to_plain_value([node.name, "yes" if node.name in reached else "no"])
        + [to_plain_value(traits.get(node.name, {}).get(name, "–")) for name in TRAITS]
        for node in facts.cluster
    ]


def _describe_links(facts: Facts) -> dict[str, Any]:
    """Bytes per second from each node (row) to each other (column); null for a link that was not measured."""
    outcome = RATES.outcome(facts)
    if not isinstance(outcome, LinkRates) or not outcome.links:
        return {"measured": False, "why": "this check did not measure bandwidth; one without --quick does"}
    names = [node.name for node in facts.cluster if any(node.name in pair for pair in outcome.links)][:_MOST_NODES]
    rates = {pair: link.mbit * _BYTES_PER_MBIT for pair, link in outcome.links.items()}
    return {"measured": True, "nodes": names, "matrix": [[rates.get((frm, to)) for to in names] for frm in names]}


def _list_collectives(facts: Facts) -> list[dict[str, Any]]:
    outcome = COLLECTIVE.outcome(facts)
    rows = outcome.rows if isinstance(outcome, CollectiveResult) else ()
    return [to_plain_value(row) for row in rows]
