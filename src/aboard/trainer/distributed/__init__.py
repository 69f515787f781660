"""Ranks, device meshes, and agreement between ranks."""
