"""How much memory one rank may use: the accelerator's own, or its part of what the host has."""

from contextlib import suppress
from pathlib import Path

import torch

# The limit of a container, in cgroup v2 and v1; without one, "max" or a number past all memory.
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory(device: torch.device, local_size: int) -> int:
    """In bytes; ranks on a CPU share what the host has, in even parts."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return _host() // local_size


def _host() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    total = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal"))
    limits = [total]
    for name in LIMITS:
        with suppress(OSError, ValueError):
            limits.append(int(Path(name).read_text(encoding="ascii")))
    return min(limits)
