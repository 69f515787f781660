"""What a node runs to compare a container with itself, in both; the image's Python may be as old as 3.6.

    inside WORKDIR                  what processes see in the container
    outside WORKDIR RUNTIME IMAGE   the same on the node, with the container's runtime and image

Both print one line of JSON.
"""

import contextlib
import glob
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Large images are hashed in samples: a check must not read 20 GB on each node, all from one file server.
SAMPLES, SAMPLE_BYTES = 256, 1 << 18
FILE_RUNTIMES = ("apptainer", "singularity")


def describe_view(workdir: str) -> "dict[str, Any]":
    home = os.path.expanduser("~")
    gpus = list_numbered_files("/dev", "nvidia")
    return {
        "python": sys.version.split()[0],
        "executable": sys.executable or "",
        "gpus": gpus,
        "rocm": os.path.exists("/dev/kfd"),
        "driver": can_load("libcuda.so.1") if gpus else False,
        "infiniband": list_numbered_files("/dev/infiniband", "uverbs"),
        "shm": measure_disk("/dev/shm"),  # noqa: S108 - only measured
        "files": read_limit(resource.RLIMIT_NOFILE),
        "locked": read_limit(resource.RLIMIT_MEMLOCK),
        "home": home,
        "home_writable": os.path.isdir(home) and os.access(home, os.W_OK),
        "workdir": identify_file(workdir) if workdir else "",
        "users": count_mapped_users(),
    }


def list_numbered_files(folder: str, prefix: str) -> "list[str]":
    try:
        return sorted(name for name in os.listdir(folder) if name.startswith(prefix) and name[len(prefix) :].isdigit())
    except OSError:
        return []


def can_load(library: str) -> bool:
    import ctypes  # noqa: PLC0415 - only nodes with a GPU need it

    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def measure_disk(path: str) -> int:
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return found.f_blocks * found.f_frsize


def read_limit(kind: int) -> "int | None":
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def identify_file(path: str) -> str:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ""
    return "%d:%d" % (found.st_dev, found.st_ino)


def count_mapped_users() -> int:
    with open("/proc/self/uid_map", encoding="ascii") as file:
        return sum(int(line.split()[2]) for line in file)


def describe_runtime(workdir: str, runtime: str, image: str) -> "dict[str, Any]":
    path = shutil.which(runtime)
    description = {"runtime": path or "", "version": "", "view": describe_view(workdir)}  # type: dict[str, Any]
    if path:
        code, out, err = run_program(path, "--version")
        description["version"] = (out if code == 0 else err).strip()[:200]
        description.update((describe_image_file if runtime in FILE_RUNTIMES else find_stored_image)(runtime, image))
    return description


def run_program(*argv: str) -> "tuple[int, str, str]":
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, "", str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def describe_image_file(runtime: str, image: str) -> "dict[str, Any]":
    if "://" in image:
        return {"kind": "registry"}
    if os.path.isdir(image):
        return {"kind": "directory"}
    description = {"replaceable": os.access(os.path.dirname(image) or ".", os.W_OK)}  # type: dict[str, Any]
    try:
        size = os.stat(image).st_size
        description.update(kind="file", size=size, image=hash_image(image, size))
    except FileNotFoundError:
        return dict(description, kind="missing", problem=image + ": No such file or directory")
    except OSError as error:
        return dict(description, kind="unreadable", problem="%s: %s" % (image, error.strerror))
    description["mountable"] = can_mount(runtime)
    if not description["mountable"]:
        folder = os.environ.get(runtime.upper() + "_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - only measured
        with contextlib.suppress(OSError):
            description["free"] = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    return description


def hash_image(path: str, size: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        if size <= SAMPLES * SAMPLE_BYTES:
            for part in iter(lambda: file.read(1 << 20), b""):
                digest.update(part)
        else:
            digest.update(b"%d" % size)
            for sample in range(SAMPLES):
                file.seek((size - SAMPLE_BYTES) * sample // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def can_mount(runtime: str) -> bool:
    """As root by a setuid starter, or with FUSE."""
    libexec = ""
    for line in run_program(runtime, "buildcfg")[1].splitlines():
        if line.startswith("LIBEXECDIR="):
            libexec = line.partition("=")[2]
    if any(os.stat(path).st_mode & 0o4000 for path in glob.glob(libexec + "/*/bin/starter-suid")):
        return True
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError:
        return False
    own = glob.glob(libexec + "/*/bin/squashfuse_ll")
    return bool(own or shutil.which("squashfuse_ll") or shutil.which("squashfuse"))


def find_stored_image(runtime: str, image: str) -> "dict[str, Any]":
    code, out, err = run_program(runtime, "image", "inspect", "--format", "{{.Id}}", image)
    found = out.strip().rpartition("\n")[2]
    if code == 0:
        return {"kind": "store", "image": found.replace("sha256:", "")}
    absent = "no such image" in err.lower() or "image not known" in err.lower()
    return {"kind": "missing" if absent else "unusable", "problem": err[-2000:]}


if __name__ == "__main__":
    describe = describe_view if sys.argv[1] == "inside" else describe_runtime  # type: Any
    print(json.dumps(describe(*sys.argv[2:])))
