"""Rules over what a run left behind, of the same shape as those in `checks`: the earliest cause, not the cascade."""
