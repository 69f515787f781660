"""Failures that are known by what programs print."""
