"""What a node runs to tell its storage: Python 3.9 and the standard library; whatever could hang is done in a child.

    look WORKDIR              the directories that a run needs, and the mounts that don't answer
    room OUTPUT               the disk behind a directory that the run will write to
    write WORKDIR             leaves a nonce there for others, and says its name
    read WORKDIR NAME WAIT    reads it back, for WAIT seconds if need be, and maps a file of its own into memory
    remove WORKDIR NAME       takes it away

All print one line of JSON.
"""

# A server that is only slow answers within this; a dead one never does.
MOUNT_SECONDS = 3.0
NETWORK_TYPES = (
    "nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "gpfs", "ceph", "glusterfs", "9p", "afs", "orangefs", "pvfs2",
    "wekafs", "panfs",
)  # fmt: skip
MAX_MOUNTS = 64
NONCE = ".aboard-nonce-"
# Mounts of other users' sessions are nobody's storage.
_PRIVATE_FUSE = ("fuse.gvfsd-fuse", "fuse.portal", "fuse.lxcfs", "fuse.snapfuse")

_HEAD = f"""\
SECONDS, MAX_MOUNTS, NONCE = {MOUNT_SECONDS}, {MAX_MOUNTS}, {NONCE!r}
NETWORK, PRIVATE_FUSE = {NETWORK_TYPES!r}, {_PRIVATE_FUSE!r}
"""
_BODY = r"""
import errno, json, mmap, os, select, sys, time

GONE = (errno.ENOTCONN, errno.ESTALE, errno.EIO, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.ENODEV, errno.ECONNABORTED)

def mounts():
    # The last mount on a point is the one that is seen.
    found = {}
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            source, point, kind = line.split(" ")[:3]
            for octal, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
                point = point.replace(octal, letter)
            found.pop(point, None)
            found[point] = {"point": point, "type": kind, "source": source, "network": network(kind)}
    return found

def network(kind):
    return kind in NETWORK or kind.startswith("fuse.") and kind not in PRIVATE_FUSE

def in_children(jobs):
    # One that hangs on a dead mount can't even be killed: it is left behind, and goes when the mount comes back.
    waiting, told = {}, {}
    for name, job in jobs.items():
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                try:
                    outcome = job()
                except OSError as error:
                    outcome = {"error": error.strerror, "errno": error.errno}
                os.write(theirs, json.dumps(outcome).encode())
            finally:
                os._exit(0)
        os.close(theirs)
        waiting[ours] = (name, pid)
    deadline = time.monotonic() + SECONDS
    while waiting and time.monotonic() < deadline:
        for fd in select.select(list(waiting), [], [], max(0, deadline - time.monotonic()))[0]:
            said = os.read(fd, 65536)
            name, pid = waiting.pop(fd)
            told[name] = json.loads(said) if said else {"error": "no answer", "errno": 0}
    for name, pid in waiting.values():
        os.kill(pid, 9)
        told[name] = {"silent": True}
    return told

def about(path):
    def job():
        stat = os.stat(path)
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        disk = os.statvfs(path)
        return {
            "real": os.path.realpath(path),
            "size": disk.f_blocks * disk.f_frsize,
            "free": disk.f_bavail * disk.f_frsize,
            "inodes": disk.f_files,
            "inodes_free": disk.f_favail,
            "read_only": bool(disk.f_flag & os.ST_RDONLY),
            "writable": os.access(path, os.W_OK | os.X_OK),
            "owner": stat.st_uid,
        }
    return job

def answers(path):
    def job():
        os.statvfs(path)
        return {}
    return job

def look(workdir):
    table = mounts()
    places = {"workdir": workdir, "home": os.path.expanduser("~")}
    places["tmp"] = os.environ.get("TMPDIR") or "/tmp"
    places = {role: path for role, path in places.items() if path}
    remote = [point for point, mount in table.items() if mount["network"]][:MAX_MOUNTS]
    jobs = {"mount " + point: answers(point) for point in remote}
    jobs.update({"place " + role: about(path) for role, path in places.items()})
    told = in_children(jobs)
    dead = []
    for point in remote:
        answer = told["mount " + point]
        if answer.get("silent") or answer.get("errno") in GONE:
            why = answer.get("error") or "no answer within %g s" % SECONDS
            dead.append(dict(table[point], why=why))
    seen = {}
    for role, path in places.items():
        answer = dict(told["place " + role], path=path)
        mount = mount_of(answer.get("real", path), table)
        seen[role] = dict(answer, mount=mount["point"], type=mount["type"], source=mount["source"],
                          network=mount["network"])
    return {"uid": os.getuid(), "places": seen, "dead": dead}

def room(path):
    def job():
        # The run will make it: what counts is the nearest directory above that is there.
        there = path
        while there != "/" and not os.path.lexists(there):
            there = os.path.dirname(there)
        return about(there)()
    table = mounts()
    answer = in_children({"room": job})["room"]
    mount = mount_of(answer.get("real", path), table)
    return dict(answer, path=path, mount=mount["point"], type=mount["type"], source=mount["source"],
                network=mount["network"])

def mount_of(path, table):
    while path not in table:
        if path in ("", "/"):
            return {"point": "/", "type": "", "source": "", "network": False}
        path = os.path.dirname(path)
    return table[path]

def write(workdir):
    for name in os.listdir(workdir):
        # What a check that was cut short has left, hours ago.
        path = os.path.join(workdir, name)
        if name.startswith(NONCE):
            stat = os.lstat(path)
            if stat.st_uid == os.getuid() and time.time() - stat.st_mtime > 3600:
                os.unlink(path)
    nonce = os.urandom(16).hex()
    name = NONCE + os.urandom(8).hex()
    path = os.path.join(workdir, name)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.write(fd, nonce.encode())
        os.fsync(fd)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)
    return {"name": name, "nonce": nonce}

def read(workdir, name, wait):
    deadline = time.monotonic() + float(wait)
    while True:
        try:
            # Nobody has looked for this name before, so no cache of NFS can say that it isn't there.
            with open(os.path.join(workdir, name), encoding="ascii", errors="replace") as file:
                nonce = file.read(64)
            break
        except FileNotFoundError:
            nonce = ""
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return {"nonce": nonce, "mapped": mapped(workdir)}

def mapped(top):
    path = os.path.join(top, NONCE + os.urandom(8).hex())
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        return {"step": "write", "error": error.strerror}
    try:
        step = "write"
        os.write(fd, b"aboard" * 1000)
        os.fsync(fd)
        step = "map"
        # As Arrow and safetensors do it.
        with mmap.mmap(fd, 6000, mmap.MAP_SHARED, mmap.PROT_READ) as view:
            if view[:6] != b"aboard" or view[-6:] != b"aboard":
                return {"step": "map", "error": "the data read back differs from what was written"}
    except OSError as error:
        return {"step": step, "error": error.strerror}
    finally:
        os.close(fd)
        os.unlink(path)
    return {"step": "", "error": ""}

def remove(workdir, name):
    os.unlink(os.path.join(workdir, name))
    return {}

what, *words = sys.argv[1:]
try:
    told = {"look": look, "room": room, "write": write, "read": read, "remove": remove}[what](*words)
except OSError as error:
    told = {"error": error.strerror}
sys.stdout.write(json.dumps(told) + "\n")
sys.stdout.flush()
os._exit(0)
"""
SCRIPT = _HEAD + _BODY
