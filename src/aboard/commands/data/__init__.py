"""`aboard data`: reads every row as training would, and runs the data check."""
