"""Copies files to nodes that lack them."""
