"""Files that can't be brought to a node."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Command

DISK_FULL = Diagnosis(
    code="spread-disk-full",
    title="a node has no room for the files of the run",
    symptoms=("OSError: [Errno 28] No space left on device", "OSError: [Errno 122] Disk quota exceeded"),
    explanation="Shards, bins and the model go to the same path on every node that lacks them; all disks are"
    " looked at before anything is sent.",
    remedy="On the node: `df -h PATH`, `du -xh PATH | sort -h | tail`, `quota -s`. Prepared data that is no longer"
    " wanted is in `~/.cache/aboard`. Where homes are small, `XDG_CACHE_HOME` on the head names another disk.",
    fixes={
        "refused": Command("df -h {path}    # on {node}; or a quota: quota -s"),
        "no-room": Command("du -xh {path} | sort -h | tail    # on {node}; what is largest there? Make room"),
    },
)

DENIED = Diagnosis(
    code="spread-denied",
    title="the user may not write there on a node",
    symptoms=("PermissionError: [Errno 13] Permission denied", "OSError: [Errno 30] Read-only file system"),
    explanation="Files go to the path that they have on the head; what is below your home goes below your home"
    " there. On this node that directory, or the one above it, belongs to somebody else.",
    remedy="`namei -l PATH` on the node shows who may write where. Put model and data below your home, or make the"
    " directory once: `sudo install -d -o $USER PATH`.",
    fixes="namei -l {path}    # on {node}; who may write where",
)

PATH = Diagnosis(
    code="spread-path",
    title="something else has the name of a file that is sent",
    symptoms=(
        "NotADirectoryError: [Errno 20] Not a directory",
        "OSError: [Errno 40] Too many levels of symbolic links",
    ),
    explanation="On this node a file stands where a directory is to be, or the other way round, or a link leads"
    " nowhere.",
    remedy="`ls -ld PATH` on the node; take it out of the way.",
    fixes="ls -ld {path}    # on {node}; something else has this name",
)

DISK = Diagnosis(
    code="spread-disk",
    title="a node's disk doesn't take the files",
    symptoms=("OSError: [Errno 5] Input/output error", "took nothing in for 60 s, while the node itself answers"),
    explanation="The node answers and its disk doesn't, or it gave an error: a disk that fails, or a file server"
    " that hangs.",
    remedy="On the node: `sudo dmesg | tail`, `timeout 5 df -h PATH`. `aboard check --only storage` finds dead mounts.",
    fixes={
        "errors": Command("sudo dmesg | tail    # on {node}; were there disk errors?"),
        "stuck": Command("timeout 5 df -h {path}    # on {node}; does a mount hang?"),
    },
)

BUSY = Diagnosis(
    code="spread-busy",
    title="somebody else sends the same files now",
    symptoms=("somebody else is sending",),
    explanation="Another head, or another command of yours, writes to the same directory on this node at this moment.",
    remedy="Wait for it, then try again: what is there by then isn't sent twice. `fuser -v PATH/.aboard-*.part`"
    " shows who.",
    fixes="fuser -v {folder}/.aboard-*.part    # on {node}; wait for it, then try again",
)

HASH = Diagnosis(
    code="spread-hash",
    title="a file is another one after it was sent",
    symptoms=("after it was sent, and should have",),
    explanation="It left the head whole, and what the node reads back has another hash. That is bad memory, a bad"
    " disk, or a program that changes files there.",
    remedy="`sudo dmesg | tail` on the node; leave it out (`--exclude NODE`) until it is mended.",
    fixes="sudo dmesg | tail    # on {node}; a bad disk or bad memory?",
)

LOST = Diagnosis(
    code="spread-lost",
    title="a node was lost again and again while files were sent",
    symptoms=("it was lost 3 times while files were sent to it", "client_loop: send disconnect: Broken pipe"),
    explanation="The connection broke each time that it was made anew: a network that drops long transfers (MTU, a"
    " firewall's idle limit), or a node that restarts.",
    remedy="`aboard check` looks at both. Then the same command: it goes on where it was.",
    fixes="aboard check    # then try again: it goes on where it was",
)

EMPTY = Diagnosis(
    code="spread-empty",
    title="a directory that ranks need is empty",
    symptoms=("has no files to be spread",),
    explanation="The model's or the data's directory on the head has no files.",
    remedy="`ls -la DIR` on the head, and name the right one. Prepared data that lost its files is made again when"
    " its directory below `~/.cache/aboard` is removed.",
    fixes="ls -l {folder}",
)
