"""The scripts that compare a container with its node: runtime and image outside, what ranks see on both sides."""

# The same on both sides; printed as JSON. The image's Python may be as old as 3.6.
_VIEW = r"""
import json, os, resource, sys

def entries(folder, prefix):
    try:
        return sorted(name for name in os.listdir(folder) if name.startswith(prefix) and name[len(prefix):].isdigit())
    except OSError:
        return []

def limit(kind):
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft

def identity(path):
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ""
    return "%d:%d" % (found.st_dev, found.st_ino)

def size(path):
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return found.f_blocks * found.f_frsize

def loads(library):
    import ctypes
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True

def users():
    with open("/proc/self/uid_map") as file:
        return sum(int(line.split()[2]) for line in file)

def view(workdir):
    home = os.path.expanduser("~")
    gpus = entries("/dev", "nvidia")
    return {
        "python": sys.version.split()[0],
        "executable": sys.executable or "",
        "gpus": gpus,
        "rocm": os.path.exists("/dev/kfd"),
        "driver": loads("libcuda.so.1") if gpus else False,
        "infiniband": entries("/dev/infiniband", "uverbs"),
        "shm": size("/dev/shm"),
        "files": limit(resource.RLIMIT_NOFILE),
        "locked": limit(resource.RLIMIT_MEMLOCK),
        "home": home,
        "home_writable": os.path.isdir(home) and os.access(home, os.W_OK),
        "workdir": identity(workdir) if workdir else "",
        "users": users(),
    }
"""

INSIDE_SCRIPT = _VIEW + "\nprint(json.dumps(view(sys.argv[1])))\n"

# Large images are hashed in samples: a check must not read 20 GB on each node, all from one file server.
_OUTSIDE_BODY = r"""
import glob, hashlib, shutil, subprocess

SAMPLES, SAMPLE_BYTES = 256, 1 << 18
FILE_RUNTIMES = ("apptainer", "singularity")

def run(*argv):
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, "", str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")

def digest(path, size):
    told = hashlib.sha256()
    with open(path, "rb") as file:
        if size <= SAMPLES * SAMPLE_BYTES:
            for part in iter(lambda: file.read(1 << 20), b""):
                told.update(part)
        else:
            told.update(b"%d" % size)
            for sample in range(SAMPLES):
                file.seek((size - SAMPLE_BYTES) * sample // (SAMPLES - 1))
                told.update(file.read(SAMPLE_BYTES))
    return told.hexdigest()

def mountable(runtime):
    # As root by a setuid starter, or with FUSE.
    libexec = ""
    for line in run(runtime, "buildcfg")[1].splitlines():
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

def image_file(runtime, image):
    if "://" in image:
        return {"kind": "registry"}
    if os.path.isdir(image):
        return {"kind": "directory"}
    told = {"replaceable": os.access(os.path.dirname(image) or ".", os.W_OK)}
    try:
        size = os.stat(image).st_size
        told.update(kind="file", size=size, image=digest(image, size))
    except FileNotFoundError:
        return dict(told, kind="missing", problem=image + ": No such file or directory")
    except OSError as error:
        return dict(told, kind="unreadable", problem="%s: %s" % (image, error.strerror))
    told["mountable"] = mountable(runtime)
    if not told["mountable"]:
        prefix = runtime.upper()
        folder = os.environ.get(prefix + "_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
        try:
            told["free"] = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
        except OSError:
            pass
    return told

def image_store(runtime, image):
    code, out, err = run(runtime, "image", "inspect", "--format", "{{.Id}}", image)
    found = out.strip().rpartition("\n")[2]
    if code == 0:
        return {"kind": "store", "image": found.replace("sha256:", "")}
    absent = "no such image" in err.lower() or "image not known" in err.lower()
    return {"kind": "missing" if absent else "unusable", "problem": err[-2000:]}

def main(runtime, image, workdir):
    path = shutil.which(runtime)
    told = {"runtime": path or "", "version": "", "view": view(workdir)}
    if path:
        code, out, err = run(path, "--version")
        told["version"] = (out if code == 0 else err).strip()[:200]
        told.update((image_file if runtime in FILE_RUNTIMES else image_store)(runtime, image))
    return told

print(json.dumps(main(*sys.argv[1:4])))
"""
OUTSIDE_SCRIPT = _VIEW + _OUTSIDE_BODY
