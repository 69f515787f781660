"""Rules over a run's evidence, of the same kind as those in `checks`: the earliest cause, not the cascade."""
