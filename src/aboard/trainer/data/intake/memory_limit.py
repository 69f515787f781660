"""Bounds the memory that somebody else's file or program may take."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def limit_memory(more: int) -> Iterator[None]:
    """Raises MemoryError where the process would take so many bytes more than it has now."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    set_memory_limit(before, more)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def set_memory_limit(before: tuple[int, int], more: int) -> None:
    """Limits this process to so many bytes more than it has; `before` are the limits that stay in force."""
    soft, hard = before
    # A system without /proc, such as macOS, has no limit for memory.
    with suppress(ValueError, OSError):
        # What the limit counts: the address space in use.
        used = int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
        limit = min(each for each in (soft, hard, used + more) if each != resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
