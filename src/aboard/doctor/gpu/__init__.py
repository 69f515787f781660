"""GPUs: as many as slots, alike on all nodes, with a working driver, and healthy."""
