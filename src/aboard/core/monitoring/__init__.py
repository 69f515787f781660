"""What a run reports elsewhere: messages about its events, and metrics."""
