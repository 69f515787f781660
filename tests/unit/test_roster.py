"""The roster as a value: who is missing, and the same at the far end of a socket."""

import json
from collections.abc import Callable

import pytest
from rosters import dead, silent, starting, training

from aboard.core.roster import Roster
from aboard.core.roster_words import from_words, to_words


@pytest.mark.parametrize("scene", [starting, training, dead, silent])
def test_a_roster_comes_over_as_it_is(scene: Callable[[int, int], Roster]) -> None:
    """Through JSON and back, with its phases and troubles as values."""
    roster = scene(4, 2)
    assert from_words(json.loads(json.dumps(to_words(roster)))) == roster
