"""What `aboard train` probes beyond a check, and the diagnoses of what it refuses."""
