"""Large files that nodes pass on to each other."""
