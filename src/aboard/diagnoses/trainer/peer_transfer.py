"""Diagnoses of nodes that pass pieces of large files on to each other."""

from aboard.diagnoses.diagnosis import warning

WRONG_BYTES = warning(
    code="peer-wrong-bytes",
    title="a node sent wrong bytes to its peers",
    symptoms=("sent a piece that differs from its hash",),
    explanation="Every piece is compared with the hash that came from the head, so no wrong byte was kept: the pieces"
    " were fetched elsewhere. Possible causes: bad memory, a bad disk or NIC, or a program that changed the file.",
    fixes="sudo dmesg | tail    # on {node}; a bad disk or bad memory? Until it is repaired: --exclude {node}",
)

BLOCKED = warning(
    code="peer-blocked",
    title="nodes can't pass files on to each other",
    symptoms=("took no part in passing files on",),
    explanation="While large files are copied, nodes pass pieces on to each other, on the ports that `aboard check`"
    " tests. Where a firewall blocks them, the pieces come from other nodes or from the head, which takes longer."
    " Training needs the same connections.",
    fixes="aboard check --only network    # shows what blocks {nodes}",
)

SILENT = warning(
    code="peer-silent",
    title="a node stopped sending to its peers",
    symptoms=("was asked for a piece and sent nothing",),
    explanation="The node accepted connections but did not send the pieces that it offered, so they were fetched"
    " elsewhere. Its disk or network may hang.",
    fixes="sudo dmesg | tail    # on {node}; does a disk or NIC hang?",
)
