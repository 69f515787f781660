"""One file for each rule of the data check."""
