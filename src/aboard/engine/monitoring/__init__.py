"""What a run reports elsewhere while it runs: messages to receivers, and figures for Prometheus."""
