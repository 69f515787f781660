"""Attacks by a rank: code that runs with the user's rights on a node, and whatever it prints or kills."""
