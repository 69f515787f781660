"""Attacks by another user of a node or of the head, without any right of ours."""

from other_users import ATTACKER, VICTIM, run_as


def test_users_are_other_uids() -> None:
    """The actors of this file are neither root nor each other."""
    uids = [int(run_as(uid, "import os; print(os.getuid())")) for uid in (VICTIM, ATTACKER)]
    assert uids == [VICTIM, ATTACKER]
