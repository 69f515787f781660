"""Views of `aboard check`: live view, tables, plain lines."""
