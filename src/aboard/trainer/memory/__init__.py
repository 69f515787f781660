"""Estimates the memory of a rank, and measures it."""
