"""Preflight: one package per subject, with its probes and rules."""
