"""Failures that are recognized by the messages that programs print."""
