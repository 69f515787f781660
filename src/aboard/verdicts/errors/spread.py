"""The stories of files that can't be brought to a node."""

from aboard.core.rule import Subject
from aboard.core.story import Story
from aboard.diagnoses import Severity

STORIES = (
    Story(
        code="spread-disk-full",
        title="a node has no room for the files of the run",
        severity=Severity.BLOCK,
        shows=("OSError: [Errno 28] No space left on device", "OSError: [Errno 122] Disk quota exceeded"),
        why="Shards, bins and the model go to the same path on every node that lacks them; all disks are looked at"
        " before anything is sent.",
        mend="On the node: `df -h PATH`, `du -xh PATH | sort -h | tail`, `quota -s`. Prepared data that is no longer"
        " wanted is in `~/.cache/aboard`. Where homes are small, `XDG_CACHE_HOME` on the head names another disk.",
    ),
    Story(
        code="spread-denied",
        title="the user may not write there on a node",
        severity=Severity.BLOCK,
        shows=("PermissionError: [Errno 13] Permission denied", "OSError: [Errno 30] Read-only file system"),
        why="Files go to the path that they have on the head; what is below your home goes below your home there. On"
        " this node that directory, or the one above it, belongs to somebody else.",
        mend="`namei -l PATH` on the node shows who may write where. Put model and data below your home, or make the"
        " directory once: `sudo install -d -o $USER PATH`.",
    ),
    Story(
        code="spread-path",
        title="something else has the name of a file that is sent",
        severity=Severity.BLOCK,
        shows=(
            "NotADirectoryError: [Errno 20] Not a directory",
            "OSError: [Errno 40] Too many levels of symbolic links",
        ),
        why="On this node a file stands where a directory is to be, or the other way round, or a link leads nowhere.",
        mend="`ls -ld PATH` on the node; take it out of the way.",
    ),
    Story(
        code="spread-disk",
        title="a node's disk doesn't take the files",
        severity=Severity.BLOCK,
        shows=("OSError: [Errno 5] Input/output error", "took nothing in for 60 s, while the node itself answers"),
        why="The node answers and its disk doesn't, or it gave an error: a disk that fails, or a file server that"
        " hangs.",
        mend="On the node: `sudo dmesg | tail`, `timeout 5 df -h PATH`. `aboard check --only storage` finds dead"
        " mounts.",
    ),
    Story(
        code="spread-busy",
        title="somebody else sends the same files now",
        severity=Severity.BLOCK,
        shows=("somebody else is sending",),
        why="Another head, or another command of yours, writes to the same directory on this node at this moment.",
        mend="Wait for it, then try again: what is there by then isn't sent twice. `fuser -v PATH/.aboard-*.part` shows"
        " who.",
    ),
    Story(
        code="spread-hash",
        title="a file is another one after it was sent",
        severity=Severity.BLOCK,
        shows=("after it was sent, and should have",),
        why="It left the head whole, and what the node reads back has another hash. That is bad memory, a bad disk,"
        " or a program that changes files there.",
        mend="`sudo dmesg | tail` on the node; leave it out (`--exclude NODE`) until it is mended.",
    ),
    Story(
        code="spread-lost",
        title="a node was lost again and again while files were sent",
        severity=Severity.BLOCK,
        shows=("it was lost 3 times while files were sent to it", "client_loop: send disconnect: Broken pipe"),
        why="The connection broke each time that it was made anew: a network that drops long transfers (MTU, a"
        " firewall's idle limit), or a node that restarts.",
        mend="`aboard check` looks at both. Then the same command: it goes on where it was.",
    ),
    Story(
        code="spread-empty",
        title="a directory that ranks need is empty",
        severity=Severity.BLOCK,
        shows=("has no files to be spread",),
        why="The model's or the data's directory on the head has no files.",
        mend="`ls -la DIR` on the head, and name the right one. Prepared data that lost its files is made again when"
        " its directory below `~/.cache/aboard` is removed.",
    ),
)

SPREAD = Subject(
    name="spread",
    title="every node has the files that ranks read",
    probes=(),
    rules=(),
    stories=STORIES,
    asked="aboard train",
    room="verdicts/errors",
)
