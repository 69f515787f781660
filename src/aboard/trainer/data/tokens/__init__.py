"""Encodes rows as tokens and loss masks; the chat template decides which tokens are answers."""
