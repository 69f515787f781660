"""How much of a GPU's memory a rank can count on, as the head and the rank itself decide it."""

# The driver reserves some, and a process's own context takes some, which the estimate counts.
_OVERHEAD = 2 << 30


def find_usable_memory(free: int, total: int) -> int:
    """All of it, unless another process holds some: then what is free."""
    return free if total - free > _OVERHEAD else total
