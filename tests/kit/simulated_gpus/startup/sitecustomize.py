"""Gives every Python below this PYTHONPATH simulated GPUs, as soon as it imports torch."""

import importlib.util
import os
from pathlib import Path

if os.environ.get("SIMULATED_GPUS"):
    file = Path(__file__).resolve().parents[1] / "torch_patches.py"
    spec = importlib.util.spec_from_file_location("simulated_gpus_patches", file)
    assert spec is not None
    assert spec.loader is not None
    patches = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(patches)
    patches.install()
