"""`aboard sandbox`: a practice cluster, and faults for its hosts."""
