"""Text in and out: quoting, sizes, durations, log lines."""
