"""The HTML page of reports: its sources, rendered with data into one file."""
