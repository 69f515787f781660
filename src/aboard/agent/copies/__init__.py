"""Copies files of checkpoints from node to node: to a partner while a run trains, to a spare before it resumes."""
