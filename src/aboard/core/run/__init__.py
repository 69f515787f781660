"""The state of a run, folded from its events, and what to do next."""
