"""`aboard export`: converts a checkpoint to a model or adapter that others load."""
