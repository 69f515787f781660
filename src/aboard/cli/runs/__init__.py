"""Shared by `launch` and `train`: arguments, views, attached and detached runs."""
