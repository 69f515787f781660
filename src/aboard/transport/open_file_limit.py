"""Open files: a head with many nodes needs more than the usual soft limit of 1,024; its children don't."""

import resource
from collections.abc import Callable
from functools import partial

# ssh takes three pipes, a pidfd and a little; the rest of the program takes the spare ones.
PER_NODE = 5
SPARE = 128


def raise_open_file_limit(nodes: int) -> None:
    """Raises our own soft limit as far as the hard one allows, when this many nodes need it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = SPARE + PER_NODE * nodes
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def build_limit_reset() -> Callable[[], None] | None:
    """Returns what a child on this machine runs first to restore the limit that the user's shell set."""
    now = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if now == _AT_START else partial(resource.setrlimit, resource.RLIMIT_NOFILE, _AT_START)


_AT_START = resource.getrlimit(resource.RLIMIT_NOFILE)
