"""Failures of training data, models, checkpoints and the trainer."""
