"""Attacks by a node: its agent, its files and its network send whatever they like."""
