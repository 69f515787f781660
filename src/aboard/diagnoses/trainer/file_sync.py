"""Files that can't be brought to a node."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import FixCommand

DISK_FULL = Diagnosis(
    code="spread-disk-full",
    title="a node has no room for the files of the run",
    symptoms=("OSError: [Errno 28] No space left on device", "OSError: [Errno 122] Disk quota exceeded"),
    explanation="Shards, bins and the model go to the same path on every node that lacks them. Old prepared data is in"
    " `~/.cache/aboard`; `XDG_CACHE_HOME` on the head names another disk.",
    fixes={
        "refused": FixCommand("df -h {path}    # on {node}; or a quota: quota -s"),
        "no-room": FixCommand("du -xh {path} | sort -h | tail    # on {node}; what is largest there? Make room"),
    },
)

DENIED = Diagnosis(
    code="spread-denied",
    title="the user may not write there on a node",
    symptoms=("PermissionError: [Errno 13] Permission denied", "OSError: [Errno 30] Read-only file system"),
    explanation="Files go to the path that they have on the head, or below your home if they are there. On this node"
    " that directory, or the one above it, belongs to somebody else.",
    fixes="namei -l {path}    # on {node}; who may write where; or once: sudo install -d -o $USER DIRECTORY",
)

PATH = Diagnosis(
    code="spread-path",
    title="something else has the name of a file that is sent",
    symptoms=(
        "NotADirectoryError: [Errno 20] Not a directory",
        "OSError: [Errno 40] Too many levels of symbolic links",
    ),
    explanation="On this node a file is where a directory should be, or the reverse, or a link leads nowhere.",
    fixes="ls -ld {path}    # on {node}; something else has this name: move it away",
)

DISK = Diagnosis(
    code="spread-disk",
    title="a node's disk doesn't take the files",
    symptoms=("OSError: [Errno 5] Input/output error", "took nothing in for 60 s, while the node itself answers"),
    explanation="The node answers, but its disk fails, or a file server hangs: `aboard check --only storage`.",
    fixes={
        "errors": FixCommand("sudo dmesg | tail    # on {node}; were there disk errors?"),
        "stuck": FixCommand("timeout 5 df -h {path}    # on {node}; does a mount hang?"),
    },
)

BUSY = Diagnosis(
    code="spread-busy",
    title="somebody else sends the same files now",
    symptoms=("somebody else is sending",),
    explanation="Another head, or another command of yours, is writing to the same directory on this node.",
    fixes="fuser -v {folder}/.aboard-*.part    # on {node}; wait for it, then try again",
)

HASH = Diagnosis(
    code="spread-hash",
    title="a file is another one after it was sent",
    symptoms=("after it was sent, and should have",),
    explanation="The node reads back other bytes than the head sent: bad memory, a bad disk, or a program there.",
    fixes="sudo dmesg | tail    # on {node}; a bad disk or bad memory? Until it is repaired: --exclude {node}",
)

LOST = Diagnosis(
    code="spread-lost",
    title="a node was lost again and again while files were sent",
    symptoms=("it was lost 3 times while files were sent to it", "client_loop: send disconnect: Broken pipe"),
    explanation="The network drops long transfers (MTU, a firewall's idle limit), or the node restarts.",
    fixes="aboard check    # then try again: it goes on where it was",
)

EMPTY = Diagnosis(
    code="spread-empty",
    title="a directory that ranks need is empty",
    symptoms=("has no files to copy",),
    explanation="The model's or the data's directory on the head has no files.",
    fixes="ls -l {folder}    # prepared data is made again once this directory is removed",
)
