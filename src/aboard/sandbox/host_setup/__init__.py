"""Builds the hosts of a sandbox: root file systems, networks, users and services."""
