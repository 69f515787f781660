"""Programs for other interpreters than Aboard's, mostly that of the ranks: their source is sent, data comes back."""
