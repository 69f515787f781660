"""What `aboard data` shows: reports, histograms, one row of tokens."""
