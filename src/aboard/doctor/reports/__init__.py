"""Files that aren't logs: reports of NCCL, torch, Slurm, drivers and py-spy, recognized by their content."""
