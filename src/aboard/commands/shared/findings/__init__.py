"""Findings as several commands show them: merged, grouped by subject, as lines and as tables."""
