"""Builds, loads, prepares and exports the model."""
