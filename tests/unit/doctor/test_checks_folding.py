"""Causes and consequences across subjects, by the stories that the checks really have."""

import pytest
from made_findings import made_finding

from aboard.core.evidence.consequences import fold_consequences
from aboard.diagnoses import Finding, Severity
from aboard.doctor.subjects import SUBJECTS

STORIES = tuple(story for subject in SUBJECTS for story in subject.diagnoses)
CODES = {story.code for story in STORIES}


def _finding(code: str, node: str = "n2", *about: str, severity: Severity = Severity.WARN) -> Finding:
    return made_finding(code=code, severity=severity, nodes=(node,), seen="", why="", fix="", about=about)


def test_what_a_cause_leads_to_exists() -> None:
    """A code that was renamed would else never be folded again; and nothing leads to itself."""
    for story in STORIES:
        assert set(story.leads_to) <= CODES - {story.code}


@pytest.mark.parametrize(
    ("cause", "consequence"),
    [
        ("storage-not-mounted", "software-code"),
        ("storage-not-shared", "software-code"),
        ("storage-missing", "software-config"),
        ("storage-dead-mount", "unknown-software"),
        ("network-mtu", "network-loss"),
        ("network-mtu", "network-flaky"),
        ("network-loss", "network-flaky"),
        ("network-link-down", "network-dropped"),
        ("host-memory-limit", "host-oom-kills"),
        ("host-conntrack", "network-flaky"),
        ("reach-setup", "unknown-nccl-plugins"),
        ("reach-no-python", "unknown-software"),
        ("reach-no-python", "unknown-visible-gpus"),
        ("reach-setup", "unknown-torch"),
        ("gpu-driver-mismatch", "unknown-gpu-processes"),
    ],
)
def test_folded_on_the_same_node_and_not_on_another(cause: str, consequence: str) -> None:
    """Whichever was found first."""
    for findings in ([_finding(cause), _finding(consequence)], [_finding(consequence), _finding(cause)]):
        (found,) = fold_consequences(findings, STORIES)
        assert (found.code, [each.code for each in found.consequences]) == (cause, [consequence])
    assert len(fold_consequences([_finding(cause), _finding(consequence, "n3")], STORIES)) == 2


@pytest.mark.parametrize(
    ("cause", "consequence"),
    [
        ("host-leftovers", "network-port-taken"),
        ("host-leftovers", "host-busy-gpu"),
        ("host-other-ranks", "network-port-taken"),
        ("fabric-nccl-settings", "software-variable"),
    ],
)
def test_folded_where_both_are_about_the_same(cause: str, consequence: str) -> None:
    """A process or a variable: another one on the same node is another matter."""
    assert (
        len(fold_consequences([_finding(consequence, "n2", "it"), _finding(cause, "n2", "it", "more")], STORIES)) == 1
    )
    assert len(fold_consequences([_finding(consequence, "n2", "other"), _finding(cause, "n2", "it")], STORIES)) == 2
    assert len(fold_consequences([_finding(consequence, "n2"), _finding(cause, "n2", "it")], STORIES)) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("storage-full", "software-code"),
        ("storage-private", "software-code"),
        ("host-clock", "software-code"),
        ("network-slow", "network-loss"),
        ("reach-slow-login", "network-flaky"),
        ("host-memory", "host-memory-limit"),
    ],
)
def test_two_faults_that_have_nothing_to_do_with_each_other_stay_two(one: str, other: str) -> None:
    """On the same node as well."""
    assert len(fold_consequences([_finding(one), _finding(other)], STORIES)) == 2
