"""Directories that a run needs: whether they are there, answer, have room, and are shared."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import Advice, FixCommand
from aboard.diagnoses.messages import cause, odd

_LARGEST = FixCommand("{look:shell}    # what is largest there; remove what nobody needs")
_REMOVE = (
    "`du -x --max-depth=2 DIRECTORY | sort -n | tail` shows what is large; old checkpoints, `~/.cache/huggingface` and"
    " `~/.cache/torch` usually are. `quota -s` shows a quota."
)

MISSING = Diagnosis(
    code="storage-missing",
    title="The working directory is not there",
    symptoms=("FileNotFoundError: [Errno 2] No such file or directory", "can't open file", "cd: No such file"),
    explanation="Ranks start in the working directory, so none can start there. It was never made on this node, isn't"
    " mounted, is spelled another way, or this user may not enter it.",
    remedy="Mount it (`findmnt DIRECTORY` on a node that has it shows from where), or make it and copy the code there,"
    " or set `workdir:` of the node in aboard.yaml.",
    fixes="{lines:shell}    # or mount what should be there, or correct `workdir:` in aboard.yaml",
    log_fix="ls -ld {path}    # on {node} and on the head; findmnt -T shows what is mounted there",
    leads_to=("software-code", "software-config"),
    patterns=cause(
        r"(?:FileNotFoundError|OSError|IOError): \[Errno 2\] No such file or directory: b?'(?P<path>[^']+)'"
        r"|cd: (?P<path2>[^:]+): No such file or directory|couldn't chdir to [`'](?P<path3>[^']+)'"
        r"|can't open file '?(?P<path4>[^':]+)'?: \[Errno 2\]",
        "The path is not there on this node: not mounted, not shared, or not copied.",
        weight=2,
    ),
)

NOT_SHARED = Diagnosis(
    code="storage-not-shared",
    title="A directory that others share is another one on this node",
    symptoms=(
        "FileNotFoundError: [Errno 2] No such file or directory",
        "on one node only",
        "checkpoint shards are missing",
    ),
    explanation="Ranks there read other files, and what they write (checkpoints, caches) the others never see. The"
    " share isn't mounted on this node, or another export is (compare `findmnt -T DIRECTORY`).",
    fixes="sudo mount {how:shell}    # on {nodes:shell}",
    leads_to=("software-code", "software-config"),
)

NOT_MOUNTED = Diagnosis(
    code="storage-not-mounted",
    title="Nothing is mounted where other nodes have a mount",
    symptoms=("df shows / for a directory that is a share elsewhere", "No space left on device on one node only"),
    explanation="Ranks there find an empty or an old directory where the others find their files: its mount did not"
    " come up at boot, or was never set up; or the node has no such disk, and needs none.",
    fixes="sudo mount {how:shell}    # on {node}",
    leads_to=("software-code", "software-config"),
)

PRIVATE = Diagnosis(
    code="storage-private",
    title="Every node has a working directory of its own",
    severity=Severity.INFO,
    symptoms=("a file written on one node isn't on the others",),
    explanation="Code must then be copied to every node, and each node keeps its own checkpoint files.",
    fixes=Advice("workdir: PATH    # in aboard.yaml, if there is a directory that all nodes share"),
)

FULL = Diagnosis(
    code="storage-full",
    title="A disk is full",
    symptoms=("OSError: [Errno 28] No space left on device", "[Errno 122] Disk quota exceeded", "write failed"),
    explanation="What ranks write there (checkpoints, logs, caches) fails, and the others then wait for the rank that"
    " died. A quota may be used up although the disk has room.",
    remedy=_REMOVE,
    fixes=_LARGEST,
    log_fix="df -h; df -i; quota -s    # on {node}; which one? remove old checkpoints, and start from the last good"
    " one",
    patterns=cause(
        r"\[Errno 28\]|No space left on device|Disk quota exceeded|\[Errno 122\]"
        r"|PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+|file write failed|EDQUOT",
        "A disk, or a quota on it, is full: a checkpoint that was half written is not to be used.",
    ),
)

SPACE = Diagnosis(
    code="storage-space",
    title="The disk has less room than the run will write",
    symptoms=("OSError: [Errno 28] No space left on device", "PytorchStreamWriter failed writing file"),
    explanation="When the disk is full, the checkpoint that was being written is lost, and the other ranks wait for the"
    " one that died of it. A disk that nodes share must have room for what all of them write. A quota for each user"
    " doesn't show in what is free; one for the directory mostly does.",
    remedy=f"{_REMOVE} Or write elsewhere (`output:`), or correct `writes:`.",
    fixes="{look:shell}    # here; what is largest there? Remove what nobody needs\n"
    "run: {{output: PATH, writes: SIZE}}    # in aboard.yaml, if it shall write elsewhere, or less",
)

OUTPUT = Diagnosis(
    code="storage-output",
    title="The run can't write where it was told to",
    symptoms=("PermissionError: [Errno 13] Permission denied", "OSError: [Errno 30] Read-only file system"),
    explanation="The run writes its checkpoints to `output:` under `run:` in aboard.yaml, and ends when it can't. On"
    " nodes other than the first it is a warning, since some programs write on the first node alone.",
    remedy="`namei -l PATH` shows the owner and the rights of each directory on the way. Make it, or correct"
    " `output:`.",
    fixes="{look:shell}    # here; whose is it? Make it, or correct `output:` under `run:` in aboard.yaml",
)

LOW = Diagnosis(
    code="storage-low",
    title="A disk is nearly full",
    severity=Severity.WARN,
    symptoms=("OSError: [Errno 28] No space left on device",),
    explanation="A checkpoint of a model with its optimizer takes about 14 bytes per parameter, and the old one is kept"
    " until the new one is whole. When the disk is full, what ranks write fails, and the others wait for the rank that"
    " died.",
    remedy=_REMOVE,
    fixes=_LARGEST,
)

INODES = Diagnosis(
    code="storage-inodes",
    title="A file system can hold hardly any more files",
    symptoms=("OSError: [Errno 28] No space left on device", "although df -h shows free space"),
    explanation="Many file systems hold a fixed number of files, and caches and unpacked datasets use them up. Then"
    " nothing can be created, however much space is left.",
    remedy="`du --inodes -x --max-depth=2 DIRECTORY | sort -n | tail` shows where they are; pack them into archives.",
    fixes=_LARGEST,
)

READ_ONLY = Diagnosis(
    code="storage-read-only",
    title="A directory can't be written to",
    severity=Severity.WARN,
    symptoms=("OSError: [Errno 30] Read-only file system", "PermissionError: [Errno 13] Permission denied"),
    explanation="Checkpoints, logs and caches that ranks write there fail. The file system is mounted read-only, which"
    " the kernel also does by itself after disk errors, or the user has another number here than the owner, which"
    " counts on NFS.",
    remedy="`findmnt -T DIRECTORY` shows the mount's options, `sudo dmesg | tail` disk errors, `id` the user's number.",
    fixes={
        "mend": FixCommand(
            "sudo dmesg | tail    # on {nodes:shell}; were there disk errors?\n"
            "{mend:shell}    # on {nodes:shell}; if not"
        ),
        "try": FixCommand("{try_it:shell}"),
    },
    log_fix="findmnt -T PATH; sudo dmesg -T | tail    # on {node}",
    patterns=cause(
        r"\[Errno 30\]|Read-only file system|Remounting filesystem read-only",
        "A file system can't be written to: mounted so, or by the kernel after an error of the disk.",
    ),
)

DEAD_MOUNT = Diagnosis(
    code="storage-dead-mount",
    title="A mount does not answer",
    symptoms=(
        "ls or df hangs",
        "processes in state D that kill -9 doesn't end",
        "Transport endpoint is not connected",
        "Stale file handle",
        "nfs: server not responding, still trying",
    ),
    explanation="Every process that touches it hangs in state D and can't be killed: ranks, `df`, a login whose home is"
    " there. Its server is gone, or the program behind a FUSE mount has stopped.",
    fixes={
        "": FixCommand(
            "sudo umount -l {point}    # on {nodes:shell}; frees what hangs on it (FUSE: fusermount3 -uz)\n"
            "sudo mount {how:shell}    # on {nodes:shell}; when its server answers again"
        ),
        "waits": FixCommand("ps -eo pid,stat,wchan:30,cmd | grep ' D'    # on {node}; what does it wait for?"),
    },
    log_fix="timeout 5 stat -f PATH; findmnt -t nfs,nfs4,lustre,fuse    # on {node}; which mount? then mount it again",
    leads_to=("software-code", "software-config", "unknown-software", "unknown-storage-room"),
    patterns=(
        cause(
            r"nfs: server (?P<server>\S+) not responding|\[Errno 116\]|Stale (?:NFS )?file handle"
            r"|Transport endpoint is not connected|\[Errno 107\]|LustreError|\[Errno 108\]"
            r"|Cannot send after transport endpoint shutdown",
            "A network file system does not answer on this node: who reads from it waits in the kernel.",
            late=True,
        ),
        odd(
            r"INFO: task \S+:\d+ blocked for more than \d+ seconds",
            "A process waits in the kernel, mostly for a mount that does not answer.",
            fix="waits",
        ),
    ),
)

NO_MMAP = Diagnosis(
    code="storage-no-mmap",
    title="Files can't be mapped into memory",
    severity=Severity.WARN,
    symptoms=("OSError: [Errno 19] No such device", "Bus error (core dumped)", "ArrowInvalid: mmap"),
    explanation="Arrow datasets and safetensors are read through memory maps. Some FUSE file systems, and those mounted"
    " with direct_io, refuse them: the rank fails or crashes.",
    remedy="Mount it without `direct_io`, or set `HF_HOME` and `HF_DATASETS_CACHE` to another file system.",
    fixes="{look:shell}    # if FUSE: mount it without direct_io",
)
