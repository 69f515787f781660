"""What `aboard launch` shows: the plan, the rank table, the end of a run."""
