"""Test doubles for code that uses Aboard: simulated and recorded nodes, a fake supervisor, fake ranks."""
