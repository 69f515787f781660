"""Views of `aboard train`, before and during a run."""
