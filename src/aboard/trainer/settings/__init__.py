"""Training settings: defaults, derived values and conflicts."""
