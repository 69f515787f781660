"""What an interpreter runs to describe itself: Python 3.8 and the standard library, one line of JSON."""

# The packages are those outside of the environment itself: an environment with access to the system's packages uses
# them as well. The names of metadata directories are enough; reading 300 METADATA files would take a second.
SCRIPT = r"""
import json, os, platform, re, sys, sysconfig

def list_outer_packages():
    found = {}
    for base in sys.path[1:]:
        if base == sys.prefix or base.startswith(sys.prefix + os.sep) and sys.prefix != sys.base_prefix:
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

def find_glibc():
    try:
        return os.confstr("CS_GNU_LIBC_VERSION").split()[1]
    except (AttributeError, IndexError, OSError, ValueError):
        return ""

print(json.dumps({
    "executable": getattr(sys, "_base_executable", None) or sys.executable,
    "version": platform.python_version(),
    "minor": "%d.%d" % sys.version_info[:2],
    "abi": str(sysconfig.get_config_var("SOABI") or ""),
    "machine": platform.machine(),
    "glibc": find_glibc(),
    "base": sys.base_prefix,
    "site": os.path.relpath(sysconfig.get_path("purelib"), sys.prefix),
    "packages": list_outer_packages(),
}))
"""
