"""Scripts whose launcher is captured: their sessions and stages."""
