"""The first day on real GPUs: what `scripts/first-gpu-day` runs, in order of risk, and what it leaves as proof."""
