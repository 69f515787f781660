"""Parses the commands of torchrun, deepspeed and accelerate into launch requests."""
