"""A loss that is not finite."""
