"""Reads the limits that a shell's `ulimit` sets; also sent to a script's own Pythons: any from 3.6 on runs it."""

import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# By ulimit's option, with the bytes of its unit.
KINDS = {
    "c": (resource.RLIMIT_CORE, 1024),
    "d": (resource.RLIMIT_DATA, 1024),
    "l": (resource.RLIMIT_MEMLOCK, 1024),
    "n": (resource.RLIMIT_NOFILE, 1),
    "s": (resource.RLIMIT_STACK, 1024),
    "u": (resource.RLIMIT_NPROC, 1),
    "v": (resource.RLIMIT_AS, 1024),
}


def read_limits() -> "Mapping[str, int]":
    """This process's soft limits in ulimit's units, -1 for unlimited."""
    softs = {option: resource.getrlimit(kind)[0] for option, (kind, _unit) in KINDS.items()}
    return {
        option: -1 if soft == resource.RLIM_INFINITY else soft // KINDS[option][1] for option, soft in softs.items()
    }
