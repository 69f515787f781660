"""Causes first: what a finding explains is folded under it."""

from made_findings import made_finding

from aboard.core.evidence.consequences import fold_consequences
from aboard.diagnoses import Diagnosis, Finding, Severity


def _finding(code: str, *nodes: str, severity: Severity = Severity.BLOCK, about: tuple[str, ...] = ()) -> Finding:
    return made_finding(code=code, severity=severity, nodes=nodes, seen="", why="", fix="", about=about)


def _story(code: str, *leads_to: str) -> Diagnosis:
    return Diagnosis(
        code=code, title="", severity=Severity.BLOCK, symptoms=(), explanation="", remedy="", leads_to=leads_to
    )


STORIES = (
    _story("name", "loopback"),
    _story("net-link", "net-mesh", "net-rate"),
    _story("net-mesh", "net-rate"),
    _story("disk-gone", "code-differs"),
    _story("disk-other", "code-differs"),
    _story("host-left", "net-port"),
)


def test_a_consequence_is_folded_under_its_cause() -> None:
    """Wherever the two stand in the list, one finding is left, with the other inside."""
    for findings in (["name", "loopback"], ["loopback", "name"]):
        (cause,) = fold_consequences([_finding(code, "n2") for code in findings], STORIES)
        assert cause.code == "name"
        assert [each.code for each in cause.consequences] == ["loopback"]


def test_another_node_is_another_matter() -> None:
    """A finding on nodes that the cause has nothing to do with stays where it is."""
    left = fold_consequences([_finding("name", "n2"), _finding("loopback", "n3")], STORIES)
    assert [each.code for each in left] == ["name", "loopback"]
    assert not any(each.consequences for each in left)


def test_a_pair_with_the_causes_node_is_explained() -> None:
    """A bad pair is explained by what is wrong with one of its two ends."""
    (cause,) = fold_consequences([_finding("net-mesh", "n1", "n2"), _finding("net-link", "n2")], STORIES)
    assert (cause.code, cause.consequences[0].nodes) == ("net-link", ("n1", "n2"))


def test_a_chain_ends_under_its_first_cause() -> None:
    """What two findings explain is told once."""
    (cause,) = fold_consequences(
        [_finding("net-link", "n2"), _finding("net-mesh", "n2"), _finding("net-rate", "n2")], STORIES
    )
    assert cause.code == "net-link"
    assert sorted(each.code for each in cause.consequences) == ["net-mesh", "net-rate"]


def test_what_is_about_no_node_explains_what_is_about_none() -> None:
    """Findings about files have no nodes: a template without markers explains rows without a loss. A node's doesn't."""
    (cause,) = fold_consequences([_finding("loopback"), _finding("name")], STORIES)
    assert [each.code for each in cause.consequences] == ["loopback"]
    assert len(fold_consequences([_finding("loopback"), _finding("name", "n2")], STORIES)) == 2


def test_two_faults_stay_two() -> None:
    """Unrelated findings on one node are both told."""
    left = fold_consequences([_finding("name", "n2"), _finding("net-link", "n2")], STORIES)
    assert [each.code for each in left] == ["name", "net-link"]


def test_what_another_subject_found_is_explained_when_each_of_its_nodes_is() -> None:
    """Two nodes with the same other code: one's missing disk doesn't explain the other's, both together do."""
    both = _finding("code-differs", "n2", "n3")
    left = fold_consequences([both, _finding("disk-gone", "n2")], STORIES)
    assert [each.code for each in left] == ["code-differs", "disk-gone"]
    left = fold_consequences([both, _finding("disk-gone", "n2"), _finding("disk-other", "n3")], STORIES)
    assert [(each.code, each.consequences) for each in left] == [("disk-gone", (both,)), ("disk-other", ())]


def test_a_cause_weighs_as_much_as_what_it_leads_to() -> None:
    """Folding a finding that stops a run under a warning must not let the run start."""
    (cause,) = fold_consequences(
        [_finding("code-differs", "n2"), _finding("disk-gone", "n2", severity=Severity.WARN)], STORIES
    )
    assert (cause.code, cause.severity) == ("disk-gone", Severity.BLOCK)


def test_a_cause_that_says_what_it_is_about_explains_only_that() -> None:
    """The leftover that has the port is why it is taken; another program's port is another matter."""
    left_over = _finding("host-left", "n1", about=("pid 7", "pid 8"))
    for about, folded in ((("pid 8",), True), (("pid 9",), False), ((), False)):
        found = fold_consequences([_finding("net-port", "n1", about=about), left_over], STORIES)
        assert (len(found) == 1) is folded
