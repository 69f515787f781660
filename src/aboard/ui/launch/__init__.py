"""Views of `aboard launch`: plan, rank table, summary."""
