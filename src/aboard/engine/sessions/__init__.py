"""Sessions with the supervisors of a run's nodes: of ranks, of standbys, of silent nodes, and what they report."""
