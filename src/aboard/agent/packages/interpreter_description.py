"""What an interpreter runs to describe itself: any Python 3 and the standard library; it prints one line of JSON."""

import json
import os
import platform
import re
import sys
import sysconfig

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def describe_itself() -> "dict[str, Any]":
    return {
        "executable": getattr(sys, "_base_executable", None) or sys.executable,
        "version": platform.python_version(),
        "minor": "%d.%d" % sys.version_info[:2],
        "abi": str(sysconfig.get_config_var("SOABI") or ""),
        "machine": platform.machine(),
        "glibc": find_glibc(),
        "base": sys.base_prefix,
        "site": os.path.relpath(sysconfig.get_path("purelib"), sys.prefix),
        "packages": list_outer_packages(),
    }


def find_glibc() -> str:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").split()[1]
    except (AttributeError, IndexError, OSError, ValueError):
        return ""


def list_outer_packages() -> "dict[str, str]":
    """Versions of the packages outside of the environment itself, which it uses if it has access to the system's.

    The names of metadata directories are enough; reading 300 METADATA files would take a second.
    """
    found = {}  # type: dict[str, str]
    for base in sys.path[1:]:
        if base == sys.prefix or (base.startswith(sys.prefix + os.sep) and sys.prefix != sys.base_prefix):
            continue
        try:
            names = sorted(os.listdir(base))
        except OSError:
            continue
        for name in names:
            parts = re.match(r"([^~].*?)-([^-]+)(?:-py[0-9][0-9.]*)?\.(?:dist|egg)-info$", name)
            if parts:
                found.setdefault(re.sub(r"[-_.]+", "-", parts.group(1)).lower(), parts.group(2))
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(describe_itself()) + "\n")
