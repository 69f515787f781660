"""`aboard check`: runs probes on all nodes and between them, and shows what they found."""
