"""Faults of links, firewalls, name resolution and connection tracking."""
