"""What a sandbox looks like on paper."""

import pytest

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.sandbox.layout import MOST_NODES, SandboxLayout, validate_name


def layout(nodes: int = 4, *, slots: int = 2, fabric: bool = False) -> SandboxLayout:
    return SandboxLayout(name="sandbox", nodes=nodes, slots=slots, fabric=fabric)


def test_the_head_comes_first_and_nodes_count_from_one() -> None:
    """Names and addresses are those that a reader guesses."""
    places = layout(2, fabric=True).places
    assert list(places) == ["head", "n1", "n2"]
    assert [place.address for place in places.values()] == ["10.77.255.1", "10.77.0.1", "10.77.0.2"]
    assert [place.fabric_address for place in places.values()] == ["10.78.255.1", "10.78.0.1", "10.78.0.2"]


def test_no_fabric_no_fabric_address() -> None:
    """Without a second network there is no address on it."""
    assert {place.fabric_address for place in layout().places.values()} == {None}


def test_every_address_is_given_once() -> None:
    """The largest sandbox has no two cards alike."""
    places = layout(MOST_NODES, fabric=True).places.values()
    for values in ([p.address for p in places], [p.fabric_address for p in places]):
        assert len(set(values)) == MOST_NODES + 1
    assert len({mac for p in places for mac in (p.mac, p.fabric_mac)}) == 2 * (MOST_NODES + 1)


@pytest.mark.parametrize(
    ("nodes", "slots", "code"),
    [(0, 2, "sandbox-nodes"), (MOST_NODES + 1, 2, "sandbox-nodes"), (1, 0, "sandbox-slots")],
)
def test_impossible_sizes_are_refused(nodes: int, slots: int, code: str) -> None:
    """No nodes, too many nodes and no slots each have their error."""
    with pytest.raises(SandboxError) as caught:
        layout(nodes, slots=slots)
    assert caught.value.code == code


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x", "-x", "A", "x" * 42, "a b"])
def test_a_name_is_no_path(name: str) -> None:
    """A name becomes a directory's, so nothing but a plain word will do."""
    with pytest.raises(SandboxError) as caught:
        validate_name(name)
    assert caught.value.code == "sandbox-name"


def test_the_explanation_states_the_limit() -> None:
    """The diagnosis can't import the number."""
    assert f"1 to {MOST_NODES} nodes" in str(sandbox.NODES.fixes)
