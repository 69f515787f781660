"""NCCL's own report (RAS) of a hanging job."""
