"""The sections of aboard.yaml as pydantic models."""
