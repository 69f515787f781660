"""Why no agent replied on a node; each reason has a different fix."""

from enum import Enum


class UnreachableReason(Enum):
    REFUSED = "refused"
    TIMED_OUT = "timeout"
    NO_ROUTE = "no-route"
    UNRESOLVED = "unresolved"
    KEY_REFUSED = "key-refused"
    HOST_KEY_CHANGED = "host-key-changed"
    HOST_KEY_UNKNOWN = "host-key-unknown"
    DROPPED = "dropped"
    NO_PYTHON = "no-python"
    OLD_PYTHON = "old-python"
    SHELL_NOISE = "shell-noise"
    GARBAGE = "garbage"
    WRONG_VERSION = "wrong-version"
    SILENT = "silent"
    NO_SSH = "no-ssh"
    LOST = "lost"
    UNKNOWN = "unknown"
