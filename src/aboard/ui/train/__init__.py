"""What `aboard train` shows before and during a run."""
