"""The conductor: watches a run, judges it, recovers it and records it until it ends."""
