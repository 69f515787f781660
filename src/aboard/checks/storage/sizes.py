"""Bytes as people read them."""

GIB = 1 << 30


def size(count: int) -> str:
    """In the largest unit of which there is at least one."""
    for unit, one in (("TiB", 1 << 40), ("GiB", GIB), ("MiB", 1 << 20)):
        if count >= one:
            return f"{count / one:.1f} {unit}"
    return f"{count:,} bytes"
