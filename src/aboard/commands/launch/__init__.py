"""`aboard launch`: checks, plans and starts a run, and follows it to its end."""
