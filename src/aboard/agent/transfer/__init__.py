"""Receives files and verifies them by hash."""
