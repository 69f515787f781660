"""What happens after a failure: its class, whether and where the run starts again, and how often it saves before."""
