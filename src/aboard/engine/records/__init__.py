"""Records of runs: the plan as it is written, and runs read back, summarized, judged again and bundled."""
