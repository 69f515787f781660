"""What was observed on the nodes while a run was judged."""
