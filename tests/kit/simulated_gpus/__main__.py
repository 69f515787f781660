"""Builds the simulated device for the torch of this Python, if it is not built."""

from simulated_gpus import build

if __name__ == "__main__":
    build()
