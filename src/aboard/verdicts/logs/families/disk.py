"""Disks, mounts and paths."""

from aboard.verdicts.logs.symptom import Symptom, cause, odd

SYMPTOMS: tuple[Symptom, ...] = (
    cause(
        "storage-full",
        r"\[Errno 28\]|No space left on device|Disk quota exceeded|\[Errno 122\]|PytorchStreamWriter failed writing"
        r"|unexpected pos \d+ vs \d+|file write failed|EDQUOT",
        "A disk, or a quota on it, is full: a checkpoint that was half written is not to be used.",
        "df -h; df -i; quota -s    # on {node}; which one? remove old checkpoints, and start from the last good one",
        weight=3,
    ),
    cause(
        "storage-read-only",
        r"\[Errno 30\]|Read-only file system|Remounting filesystem read-only",
        "A file system can't be written to: mounted so, or by the kernel after an error of the disk.",
        "findmnt -T PATH; sudo dmesg -T | tail    # on {node}",
        weight=3,
    ),
    cause(
        "storage-dead-mount",
        r"nfs: server (?P<server>\S+) not responding|\[Errno 116\]|Stale (?:NFS )?file handle"
        r"|Transport endpoint is not connected"
        r"|\[Errno 107\]|LustreError|\[Errno 108\]|Cannot send after transport endpoint shutdown",
        "A network file system does not answer on this node: who reads from it waits in the kernel.",
        "timeout 5 stat -f PATH; findmnt -t nfs,nfs4,lustre,fuse    # on {node}; which mount? then mount it again",
        weight=3,
        late=True,
    ),
    cause(
        "log-io-error",
        r"\[Errno 5\]|Input/output error|I/O error, dev (?P<device>\w+)|EXT4-fs error|XFS .*(?:[Cc]orruption"
        r"|error)|blk_update_request: I/O error"
        r"|nvme\d.*(?:timeout|I/O Error)",
        "A disk of this node fails.",
        "sudo dmesg -T | grep -iE 'i/o error|nvme|ext4|xfs'; sudo smartctl -a /dev/DISK    # on {node}",
        weight=3,
        late=True,
    ),
    odd(
        "storage-dead-mount",
        r"INFO: task \S+:\d+ blocked for more than \d+ seconds",
        "A process waits in the kernel, mostly for a mount that does not answer.",
        "ps -eo pid,stat,wchan:30,cmd | grep ' D'    # on {node}; what does it wait for?",
    ),
    cause(
        "storage-missing",
        r"(?:FileNotFoundError|OSError|IOError): \[Errno 2\] No such file or directory: b?'(?P<path>[^']+)'"
        r"|cd: (?P<path2>[^:]+): No such file or directory|couldn't chdir to [`'](?P<path3>[^']+)'"
        r"|can't open file '?(?P<path4>[^':]+)'?: \[Errno 2\]",
        "The path is not there on this node: not mounted, not shared, or not copied.",
        "ls -ld {path}    # on {node} and on the head; findmnt -T shows what is mounted there",
        weight=2,
    ),
    cause(
        "log-permission",
        r"PermissionError: \[Errno 13\] Permission denied: '(?P<path>[^']+)'",
        "The user that ranks run as may not use this path on this node.",
        "ls -ld {path}; id    # on {node}; user and group numbers must be the same on all nodes",
        weight=2,
    ),
)
