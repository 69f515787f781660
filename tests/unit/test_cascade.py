"""Causes first: what a finding explains is folded under it."""

from aboard.core.cascade import cascade
from aboard.core.finding import Finding, Severity
from aboard.core.story import Story


def _finding(code: str, *nodes: str) -> Finding:
    return Finding(code=code, severity=Severity.BLOCK, nodes=nodes, seen="", why="", fix="")


def _story(code: str, *leads_to: str) -> Story:
    return Story(code=code, title="", severity=Severity.BLOCK, shows=(), why="", mend="", leads_to=leads_to)


STORIES = (_story("name", "loopback"), _story("link", "mesh", "rate"), _story("mesh", "rate"))


def test_a_consequence_is_folded_under_its_cause() -> None:
    """Wherever the two stand in the list, one finding is left, with the other inside."""
    for findings in (["name", "loopback"], ["loopback", "name"]):
        (cause,) = cascade([_finding(code, "n2") for code in findings], STORIES)
        assert cause.code == "name"
        assert [each.code for each in cause.consequences] == ["loopback"]


def test_another_node_is_another_matter() -> None:
    """A finding on nodes that the cause has nothing to do with stays where it is."""
    left = cascade([_finding("name", "n2"), _finding("loopback", "n3")], STORIES)
    assert [each.code for each in left] == ["name", "loopback"]
    assert not any(each.consequences for each in left)


def test_a_pair_with_the_causes_node_is_explained() -> None:
    """A bad pair is explained by what is wrong with one of its two ends."""
    (cause,) = cascade([_finding("mesh", "n1", "n2"), _finding("link", "n2")], STORIES)
    assert (cause.code, cause.consequences[0].nodes) == ("link", ("n1", "n2"))


def test_a_chain_ends_under_its_first_cause() -> None:
    """What two findings explain is told once."""
    (cause,) = cascade([_finding("link", "n2"), _finding("mesh", "n2"), _finding("rate", "n2")], STORIES)
    assert cause.code == "link"
    assert sorted(each.code for each in cause.consequences) == ["mesh", "rate"]


def test_two_faults_stay_two() -> None:
    """Unrelated findings on one node are both told."""
    left = cascade([_finding("name", "n2"), _finding("link", "n2")], STORIES)
    assert [each.code for each in left] == ["name", "link"]
