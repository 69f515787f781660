"""What `aboard trust` decides: keys and fingerprints, and how files change and change back."""
