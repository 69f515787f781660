"""What `aboard check` shows: the live view, the tables, plain lines."""
