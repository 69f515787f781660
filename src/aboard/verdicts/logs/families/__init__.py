"""What is known of messages: one family of them a file, as data."""
