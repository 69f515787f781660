"""The life of a run, from a request to its record: checked, planned, started, conducted, recovered and read back."""
