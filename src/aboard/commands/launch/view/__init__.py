"""Views of a run: plan, table of ranks, summary."""
