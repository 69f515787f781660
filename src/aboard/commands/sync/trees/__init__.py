"""Directories compared and copied: what differs between here and the nodes."""
