"""The logs of ranks: written within limits, read back merged by time."""
