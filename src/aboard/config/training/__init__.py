"""Training settings: defaults, derived values, conflicts, and the names that Hugging Face uses."""
