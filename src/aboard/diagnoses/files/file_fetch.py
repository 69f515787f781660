"""Diagnoses of files that can't be copied from a node to this machine."""

from aboard.diagnoses.diagnosis import Diagnosis

MISSING = Diagnosis(
    code="fetch-missing",
    title="a file or directory is not on the node",
    symptoms=("No such file or directory", "is not on n3"),
    explanation="The path does not exist on this node. A path that begins with ~/ is below your home directory on the"
    " node.",
    fixes="ls -ld {path}    # on {node}",
)

UNREADABLE = Diagnosis(
    code="fetch-unreadable",
    title="a file on a node can't be read",
    symptoms=("PermissionError: [Errno 13] Permission denied", "OSError: [Errno 5] Input/output error"),
    explanation="The file belongs to another user, or the node's disk is failing.",
    fixes="namei -l {path}; sudo dmesg | tail    # on {node}; shows who can read it, and disk errors",
)

CHANGED = Diagnosis(
    code="fetch-changed",
    title="a file changed on a node, or is damaged there",
    symptoms=("has sha256", "became shorter while it was read"),
    explanation="The bytes that came from the node don't have the expected hash. A program wrote to the file in the"
    " meantime, or a disk or memory of the node returns wrong bytes.",
    fixes="sha256sum {path}; sudo dmesg | tail    # on {node}; then try again",
)

NAMES = Diagnosis(
    code="fetch-names",
    title="a node listed a file name that leads out of the target directory",
    symptoms=("which could lead out of the target directory",),
    explanation="A correct agent never sends such a name: the node, or a program that answers in its place, is not to"
    " be trusted. Nothing was written.",
    fixes="aboard check    # and inspect {node} before you use it again",
)

TARGET = Diagnosis(
    code="fetch-target",
    title="files from a node can't be written on this machine",
    symptoms=("OSError: [Errno 28] No space left on device", "Too many levels of symbolic links"),
    explanation="The disk is full, the directory belongs to another user, or a symbolic link or a file is where a"
    " directory should be. Links in the target directory are never followed.",
    fixes={
        "write": "ls -ld {path}; df -h {folder}    # on this machine",
        "no-room": "df -h {folder}    # free space on this machine, or choose another directory",
        "busy": "fuser -v {path}    # another command writes the same file; wait for it, then try again",
    },
)

TOO_MANY = Diagnosis(
    code="fetch-too-many",
    title="a directory on a node has too many files to copy from there",
    symptoms=("more than 1,000,000 entries",),
    explanation="Aboard lists a directory before it copies it, and stops at one million entries.",
    fixes="find {path} -maxdepth 2 -type d    # on {node}; copy some of its directories instead",
)
