"""The conductor: watches a run, judges it, stops it and answers other commands until it ends."""
