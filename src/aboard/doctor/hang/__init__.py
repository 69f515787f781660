"""Ranks that wait: a missing peer, a rank that does something else, a dead connection."""
