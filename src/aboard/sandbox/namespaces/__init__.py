"""Enters and leaves the namespaces of a host, and runs commands inside."""
