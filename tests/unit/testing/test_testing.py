"""The public test doubles: the example in their documentation works."""

from textwrap import dedent
from typing import Any

import aboard.testing
from aboard.core.cluster.contact import ReachedNode


def test_the_documented_example_checks_simulated_nodes() -> None:
    """It runs as it is written, and reaches both nodes."""
    example = (aboard.testing.__doc__ or "").partition("\n\n")[2].partition("\n\n")[2]
    names: dict[str, Any] = {}
    exec(dedent(example), names)  # noqa: S102 - our own docstring
    contacts = names["report"].facts.contacts
    assert sorted(contacts) == ["n1", "n2"]
    assert all(isinstance(contact, ReachedNode) for contact in contacts.values())


def test_every_exported_name_exists() -> None:
    """What a `from aboard.testing import` may name."""
    assert all(hasattr(aboard.testing, name) for name in aboard.testing.__all__)
