"""Views of `aboard data`: report, histogram, token rows."""
