"""Finds secrets in text by their shape, name or place, and removes them."""
