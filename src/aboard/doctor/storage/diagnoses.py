"""Directories that a run needs: missing, unresponsive, full, or not shared."""

from aboard.diagnoses.diagnosis import Diagnosis, RunFailure, remark, run_warning, warning
from aboard.diagnoses.failure_class import FailureClass
from aboard.diagnoses.fixes import Advice
from aboard.diagnoses.output_patterns import cause, odd

_LARGEST = "{look:shell}    # lists the largest entries; delete what is no longer needed"
_REMOVE = (
    "`du -x --max-depth=2 DIRECTORY | sort -n | tail` lists the largest directories, which are usually old"
    " checkpoints, `~/.cache/huggingface` and `~/.cache/torch`. `quota -s` shows quotas."
)

MISSING = Diagnosis(
    code="storage-missing",
    title="the working directory is missing or inaccessible",
    symptoms=("FileNotFoundError: [Errno 2] No such file or directory", "can't open file", "cd: No such file"),
    explanation="Ranks start in the working directory, so none can start on this node. The directory may not have been"
    " created, may not be mounted, or may have a different path here, or this user may not be allowed to enter it.",
    remedy="Mount the directory (`findmnt DIRECTORY` on a node that has it shows the source), or create it and copy"
    " the code there, or set `workdir:` for the node in aboard.yaml.",
    fixes="{lines:shell}    # or mount the right file system, or correct `workdir:` in aboard.yaml",
    log_fix="ls -ld {path}    # on {node} and on the head; findmnt -T shows what is mounted there",
    leads_to=("software-code", "software-config"),
    patterns=cause(
        r"(?:FileNotFoundError|OSError|IOError): \[Errno 2\] No such file or directory: b?'(?P<path>[^']+)'"
        r"|cd: (?P<path2>[^:]+): No such file or directory|couldn't chdir to [`'](?P<path3>[^']+)'"
        r"|can't open file '?(?P<path4>[^':]+)'?: \[Errno 2\]",
        "The path does not exist on this node. It may not be mounted or shared, or may not have been copied.",
        weight=2,
    ),
)

NOT_SHARED = Diagnosis(
    code="storage-not-shared",
    title="a directory that other nodes share is a different one on this node",
    symptoms=(
        "FileNotFoundError: [Errno 2] No such file or directory",
        "on one node only",
        "checkpoint shards are missing",
    ),
    explanation="Ranks on this node don't read the same files as the others, and the other nodes never see what these"
    " ranks write (checkpoints, caches). Either the share is not mounted here, or a different export is (compare"
    " `findmnt -T DIRECTORY`).",
    fixes="sudo mount {how:shell}    # on {nodes:shell}",
    leads_to=("software-code", "software-config"),
)

NOT_MOUNTED = Diagnosis(
    code="storage-not-mounted",
    title="nothing is mounted where other nodes have a mount",
    symptoms=("df shows / for a directory that is a share elsewhere", "No space left on device on one node only"),
    explanation="Ranks on this node find an empty or outdated directory where the others find their files. The mount"
    " may have failed at boot or may never have been set up, or the node may have no such disk and need none.",
    fixes="sudo mount {how:shell}    # on {node}",
    leads_to=("software-code", "software-config"),
)

PRIVATE = remark(
    code="storage-private",
    title="every node has its own working directory",
    symptoms=("a file written on one node isn't on the others",),
    explanation="The code must be copied to every node, and each node keeps its own checkpoint files.",
    fixes=Advice("workdir: PATH    # in aboard.yaml, if there is a directory that all nodes share"),
)

FULL = Diagnosis(
    code="storage-full",
    title="a disk is full",
    symptoms=("OSError: [Errno 28] No space left on device", "[Errno 122] Disk quota exceeded", "write failed"),
    explanation="Writes to the disk (checkpoints, logs, caches) fail, so a rank dies, and the other ranks wait for"
    " it. A quota can be used up while the disk still has free space.",
    remedy=_REMOVE,
    fixes=_LARGEST,
    log_fix="df -h; df -i; quota -s    # on {node}; find the full disk, delete old checkpoints, and resume from the"
    " last good one",
    patterns=cause(
        r"\[Errno 28\]|No space left on device|Disk quota exceeded|\[Errno 122\]"
        r"|PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+|file write failed|EDQUOT",
        "A disk or a quota is full. Do not use a checkpoint that was only partly written.",
    ),
)

SPACE = Diagnosis(
    code="storage-space",
    title="the disk has less free space than the run will write",
    symptoms=("OSError: [Errno 28] No space left on device", "PytorchStreamWriter failed writing file"),
    explanation="When the disk is full, the checkpoint being written is lost, the rank dies, and the other ranks wait"
    " for it. A disk that nodes share needs space for what all of them write. The free space shown ignores per-user"
    " quotas, but usually takes a quota on the directory into account.",
    remedy=f"{_REMOVE} You can also write elsewhere (`output:`), or correct `writes:`, the amount that the run will"
    " write.",
    fixes="{look:shell}    # here; lists the largest entries; delete what is no longer needed\n"
    "run: {{output: PATH, writes: SIZE}}    # in aboard.yaml, to write elsewhere, or to correct how much the run"
    " writes",
)

OUTPUT = Diagnosis(
    code="storage-output",
    title="the run can't write to its output directory",
    symptoms=("PermissionError: [Errno 13] Permission denied", "OSError: [Errno 30] Read-only file system"),
    explanation="The run writes its checkpoints to `output:` under `run:` in aboard.yaml, and fails if it can't. On"
    " nodes other than the first, this is only a warning, since some programs write on the first node only.",
    remedy="`namei -l PATH` shows the owner and the permissions of each directory on the path. Create the directory,"
    " or correct `output:`.",
    fixes="{look:shell}    # here; shows the directory's owner. Create it, or correct `output:` under `run:` in"
    " aboard.yaml",
)

LOW = warning(
    code="storage-low",
    title="a disk is nearly full",
    symptoms=("OSError: [Errno 28] No space left on device",),
    explanation="A checkpoint with the model and its optimizer state takes about 14 bytes per parameter, and the old"
    " one is kept until the new one is complete. When the disk is full, a write fails, its rank dies, and the other"
    " ranks wait for it.",
    remedy=_REMOVE,
    fixes=_LARGEST,
)

INODES = Diagnosis(
    code="storage-inodes",
    title="a file system is almost out of inodes",
    symptoms=("OSError: [Errno 28] No space left on device", "although df -h shows free space"),
    explanation="Many file systems have a fixed number of inodes, and caches and unpacked datasets use them up. When"
    " none is left, no file can be created, however much space is free.",
    remedy="`du --inodes -x --max-depth=2 DIRECTORY | sort -n | tail` shows where the files are; pack them into"
    " archives.",
    fixes=_LARGEST,
)

READ_ONLY = run_warning(
    code="storage-read-only",
    restart=FailureClass.NODE,
    title="a directory is not writable",
    symptoms=("OSError: [Errno 30] Read-only file system", "PermissionError: [Errno 13] Permission denied"),
    explanation="Ranks can't write checkpoints, logs or caches there. Either the file system is mounted read-only (the"
    " kernel also does this after disk errors), or your uid on this node differs from the directory owner's, which"
    " happens on NFS.",
    remedy="Check the mount options with `findmnt -T DIRECTORY`, disk errors with `sudo dmesg | tail`, and your uid"
    " with `id`.",
    fixes={
        "mend": "sudo dmesg | tail    # on {nodes:shell}; shows disk errors\n"
        "{mend:shell}    # on {nodes:shell}; if there are no disk errors",
        "try": "{try_it:shell}",
    },
    log_fix="findmnt -T PATH; sudo dmesg -T | tail    # on {node}",
    patterns=cause(
        r"\[Errno 30\]|Read-only file system|Remounting filesystem read-only",
        "A file system is read-only. Either it was mounted that way, or the kernel remounted it after a disk error.",
    ),
)

DEAD_MOUNT = RunFailure(
    code="storage-dead-mount",
    restart=FailureClass.NODE,
    title="a mount does not respond",
    symptoms=(
        "ls or df hangs",
        "processes in state D that kill -9 doesn't end",
        "Transport endpoint is not connected",
        "Stale file handle",
        "nfs: server not responding, still trying",
    ),
    explanation="The mount's server is down, or the program behind a FUSE mount has exited. Processes that access the"
    " mount (ranks, `df`, logins with a home directory on it) fail, or hang in state D, where even SIGKILL may not end"
    " them.",
    fixes={
        "": "sudo umount -l {point}    # on {nodes:shell}; releases processes that hang on it (FUSE: fusermount3"
        " -uz)\n"
        "sudo mount {how:shell}    # on {nodes:shell}; once its server responds again",
        "waits": "ps -eo pid,stat,wchan:30,cmd | grep ' D'    # on {node}; wchan shows what each process waits for",
    },
    log_fix="timeout 5 stat -f PATH; findmnt -t nfs,nfs4,lustre,fuse    # on {node}; find the mount, then remount it",
    leads_to=("software-code", "software-config", "unknown-software", "unknown-storage-room"),
    patterns=(
        cause(
            r"nfs: server (?P<server>\S+) not responding|\[Errno 116\]|Stale (?:NFS )?file handle"
            r"|Transport endpoint is not connected|\[Errno 107\]|LustreError|\[Errno 108\]"
            r"|Cannot send after transport endpoint shutdown",
            "A network file system does not respond on this node; processes that read from it block in the kernel.",
            late=True,
        ),
        odd(
            r"INFO: task \S+:\d+ blocked for more than \d+ seconds",
            "A process is blocked in the kernel, usually on a mount that does not respond.",
            fix="waits",
        ),
    ),
)

NO_MMAP = warning(
    code="storage-no-mmap",
    title="a file system does not support memory-mapped files",
    symptoms=("OSError: [Errno 19] No such device", "Bus error (core dumped)", "ArrowInvalid: mmap"),
    explanation="Arrow datasets and safetensors files are read through memory maps. Some FUSE file systems, and those"
    " mounted with direct_io, do not support memory maps, so the rank fails or crashes.",
    remedy="Mount the file system without `direct_io`, or set `HF_HOME` and `HF_DATASETS_CACHE` to directories on a"
    " different file system.",
    fixes="{look:shell}    # if the file system is FUSE, mount it without direct_io",
)
