"""Diagnoses of files that can't be copied to a node."""

from aboard.diagnoses.diagnosis import Diagnosis, warning

DISK_FULL = Diagnosis(
    code="spread-disk-full",
    title="a node has no room for the run's files",
    symptoms=("OSError: [Errno 28] No space left on device", "OSError: [Errno 122] Disk quota exceeded"),
    explanation="Shards, packed sequences and the model are copied to the same path on every node that lacks them."
    " Prepared data from earlier runs is in `~/.cache/aboard`. To use a different disk, set `XDG_CACHE_HOME` on the"
    " head.",
    fixes={
        "refused": "df -h {path}    # on {node}; to check for a quota: quota -s",
        "no-room": "du -xh {path} | sort -h | tail    # on {node}; shows the largest directories; then free space",
    },
)

DENIED = Diagnosis(
    code="spread-denied",
    title="the user has no write permission on a node",
    symptoms=("PermissionError: [Errno 13] Permission denied", "OSError: [Errno 30] Read-only file system"),
    explanation="Files are copied to the same path as on the head. Files in your home directory on the head go to your"
    " home directory on the node. On this node, the target directory or its parent belongs to another user, or is"
    " read-only.",
    fixes="namei -l {path}    # on {node}; shows who can write; or create it: sudo install -d -o $USER DIRECTORY",
)

PATH = Diagnosis(
    code="spread-path",
    title="a path on the node is in the way",
    symptoms=("NotADirectoryError: [Errno 20] Not a directory", "IsADirectoryError: [Errno 21] Is a directory"),
    explanation="On this node, a file is where a directory should be, or a directory is where a file should be.",
    fixes="ls -ld {path}    # on {node}; move it out of the way",
)

LINK = Diagnosis(
    code="spread-link",
    title="a symbolic link on the node is in the way",
    symptoms=("it is a symbolic link to", "OSError: [Errno 40] Too many levels of symbolic links"),
    explanation="Aboard writes nothing through a link that you or another user made on a node: an earlier copy may have"
    " brought it there, and it may lead to your keys. It follows links in `/`, links above your home directory,"
    " and, unless you are root, links that root made. Prepared data goes to `~/.cache/aboard`: if `~/.cache` is a link"
    " on a node, set `XDG_CACHE_HOME` on the head to a path without links.",
    fixes="namei -l {path}    # on {node}; use the path that the link leads to, here and on the nodes, or make it a"
    " directory",
)

LINK_OUT = Diagnosis(
    code="spread-link-out",
    title="a symbolic link in a data or model directory leads out of it",
    symptoms=("which is outside of",),
    explanation="Aboard reads and sends a link in such a directory as the file that it leads to, but only if that file"
    " is in the directory, in another path that is sent, in the working directory, or in a Hugging Face cache: a"
    " cloned directory may have a link to your keys.",
    fixes="cp --remove-destination {target} {path}    # the file in place of the link; or send it too: --data {target}",
)

FOREIGN = Diagnosis(
    code="spread-foreign-files",
    title="--delete would delete files in a directory that no sync made",
    symptoms=("but no earlier sync made this directory",),
    explanation="Without PATH, `aboard sync --delete` deletes only in directories that did not exist or were empty"
    " before the first sync; the node's `~/.local/state/aboard` has a record of them. Here, the files may be yours, and"
    " the directory may be one that a cloned aboard.yaml names. In a directory that you name, it deletes what this"
    " machine lacks.",
    fixes={
        "code": "aboard sync --delete --dry-run {path}    # what would be deleted? Without --dry-run, it is",
        "data": "aboard sync --delete --dry-run --data {path}    # what would be deleted? Without --dry-run, it is",
    },
)

DISK = Diagnosis(
    code="spread-disk",
    title="a node's disk failed to store the files",
    symptoms=("OSError: [Errno 5] Input/output error", "took nothing in for 60 s, while the node itself answers"),
    explanation="The node responds, but its disk is failing or a file server hangs. Check with `aboard check --only"
    " storage`.",
    fixes={
        "errors": "sudo dmesg | tail    # on {node}; were there disk errors?",
        "stuck": "timeout 5 df -h {path}    # on {node}; does a mount hang?",
    },
)

BUSY = Diagnosis(
    code="spread-busy",
    title="another process is sending the same files",
    symptoms=("another process is already sending",),
    explanation="Another head, or another command of yours, is writing to the same directory on this node.",
    fixes="fuser -v {folder}/.aboard-*.part    # on {node}; wait for it, then try again",
)

HASH = Diagnosis(
    code="spread-hash",
    title="a file differs after it was sent",
    symptoms=("after it was sent, and should have",),
    explanation="The node reads back different bytes than the head sent. Possible causes: bad memory, a bad disk, or a"
    " program that changed the file there.",
    fixes="sudo dmesg | tail    # on {node}; a bad disk or bad memory? Until it is repaired: --exclude {node}",
)

LOST = Diagnosis(
    code="spread-lost",
    title="a node's connection was lost repeatedly while files were sent",
    symptoms=("it was lost 3 times while files were sent to it", "client_loop: send disconnect: Broken pipe"),
    explanation="The network may drop long transfers, for example because of the MTU or a firewall's idle limit, or"
    " the node may have rebooted.",
    fixes="aboard check    # then try again: the transfer resumes",
)

EMPTY = Diagnosis(
    code="spread-empty",
    title="a directory that ranks need is empty",
    symptoms=("has no files to copy",),
    explanation="The model or data directory on the head has no files, so there is nothing to copy to the nodes.",
    fixes="ls -l {folder}    # if it held prepared data, remove it, and Aboard prepares the data again",
)

# -- nodes that pass pieces of large files on to each other

PEER_WRONG_BYTES = warning(
    code="peer-wrong-bytes",
    title="a node sent wrong bytes to its peers",
    symptoms=("sent a piece that differs from its hash",),
    explanation="Every piece is compared with the hash that came from the head, so no wrong byte was kept: the pieces"
    " were fetched elsewhere. Possible causes: bad memory, a bad disk or NIC, or a program that changed the file.",
    fixes="sudo dmesg | tail    # on {node}; a bad disk or bad memory? Until it is repaired: --exclude {node}",
)

PEER_BLOCKED = warning(
    code="peer-blocked",
    title="nodes can't pass files on to each other",
    symptoms=("took no part in passing files on",),
    explanation="While large files are copied, nodes pass pieces on to each other, on the ports that `aboard check`"
    " tests. Where a firewall blocks them, the pieces come from other nodes or from the head, which takes longer."
    " Training needs the same connections.",
    fixes="aboard check --only network    # shows what blocks {nodes}",
)

PEER_SILENT = warning(
    code="peer-silent",
    title="a node stopped sending to its peers",
    symptoms=("was asked for a piece and sent nothing",),
    explanation="The node accepted connections but did not send the pieces that it offered, so they were fetched"
    " elsewhere. Its disk or network may hang.",
    fixes="sudo dmesg | tail    # on {node}; does a disk or NIC hang?",
)
