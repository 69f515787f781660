"""Aboard checks, launches, trains and diagnoses multi-node LLM training."""

__version__ = "0.1.0"
