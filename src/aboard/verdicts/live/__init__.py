"""Rules over the evidence of a run that is stuck or slow."""
