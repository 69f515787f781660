"""`aboard status`, `logs`, `stop` and `bundle`: the runs of this user, by their records."""
