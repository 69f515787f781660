"""The stories of a practice cluster that can't be had, or can't be broken as asked."""

from aboard.core.rule import Subject
from aboard.verdicts.errors.row import stories

_DOWN = "`sudo aboard sandbox down` takes all of it away, and `up` makes it anew."
_ROWS = (
    (
        "sandbox-root",
        "a sandbox needs root",
        "needs root",
        (
            "A practice host has a network, mounts and an sshd of its own, and only root may make those. Training"
            " runs as an ordinary user in it."
        ),
        "`sudo aboard sandbox up`.",
    ),
    (
        "sandbox-linux",
        "a sandbox needs Linux",
        "a sandbox is made of Linux namespaces",
        "Other systems have no namespaces.",
        "Use a Linux machine, or a virtual one.",
    ),
    (
        "sandbox-privileges",
        "root may not make namespaces here",
        "unshare failed: Operation not permitted",
        "The root of a container often lacks CAP_SYS_ADMIN.",
        "Run it on the machine itself, or in a container that was started with `--privileged`.",
    ),
    (
        "sandbox-kernel",
        "the kernel lacks a part that is needed",
        "RTNETLINK answers: Operation not supported",
        "Bridges, veth pairs, connection tracking and the like are modules that this kernel doesn't have.",
        "`sudo modprobe NAME`, or a kernel that has it; the message names the part.",
    ),
    (
        "sandbox-program",
        "a program is missing",
        "not installed here",
        "Hosts are made of real programs: sshd, ip, nft, and some faults of others.",
        "Type what stands behind `fix`: it installs all that are missing.",
    ),
    (
        "sandbox-source",
        "other users can't read this Aboard",
        "can't be read by other users",
        "On a practice host you are an ordinary user, who must be able to run it.",
        "`chmod -R o+rX DIR`, as the message has it.",
    ),
    (
        "sandbox-build",
        "the sandbox could not be made",
        "no namespaces could be made",
        "A part of it failed, which the message names.",
        _DOWN,
    ),
    (
        "sandbox-network",
        "the sandbox's network could not be made",
        "RTNETLINK answers: File exists",
        "`ip` refused a part of it; most often something of an earlier one is left.",
        _DOWN,
    ),
    (
        "sandbox-sshd",
        "an sshd of the sandbox doesn't start",
        "sshd: no hostkeys available",
        "The message has its own words.",
        _DOWN,
    ),
    (
        "sandbox-slurm",
        "Slurm of the sandbox doesn't start",
        "slurmctld: fatal",
        "The message has the daemon's own words.",
        _DOWN,
    ),
    (
        "sandbox-stuck",
        "a process of the sandbox doesn't end",
        "doesn't end",
        "It waits in the kernel, most often for a disk.",
        _DOWN,
    ),
    (
        "sandbox-busy",
        "another command works on the sandbox",
        "another aboard has been",
        "One at a time builds, breaks and heals.",
        "Wait until it is done, then: `aboard sandbox status`.",
    ),
    (
        "sandbox-down",
        "no sandbox is up",
        "no sandbox 'sandbox' is up",
        "It was never made, or the machine was started anew since.",
        "`sudo aboard sandbox up`.",
    ),
    (
        "sandbox-differs",
        "a sandbox of another shape is up",
        "that isn't what you ask for",
        "It has another number of nodes or slots, and is never changed while it is up.",
        _DOWN,
    ),
    (
        "sandbox-name",
        "a sandbox can't have that name",
        "can't name a sandbox",
        "It becomes the name of a directory.",
        "Small letters, digits, '.', '_' and '-'.",
    ),
    (
        "sandbox-nodes",
        "a sandbox can't have so many nodes",
        "nodes asked for",
        "There is a most, which the message has.",
        "`sudo aboard sandbox up --nodes 4`.",
    ),
    (
        "sandbox-slots",
        "a node has at least one slot",
        "slots asked for",
        "Without one it would start no rank.",
        "`sudo aboard sandbox up --slots 2`.",
    ),
    (
        "sandbox-host",
        "the sandbox has no such host",
        "has no host",
        "It has head, and n1 to the last.",
        "`aboard sandbox status` lists them.",
    ),
    (
        "sandbox-host-off",
        "the host is off",
        "is off",
        "A fault switched it off.",
        "`sudo aboard sandbox heal`.",
    ),
    (
        "sandbox-fault",
        "the fault could not be made",
        "ended with 1",
        "What was to break the host failed itself; the message has its words.",
        "`sudo aboard sandbox heal`, then again.",
    ),
    (
        "sandbox-fault-unknown",
        "there is no such fault",
        "there is no fault",
        "Faults have names.",
        "`aboard sandbox break --list` lists them.",
    ),
    (
        "sandbox-fault-option",
        "the fault can't be had like that",
        "can't be had",
        "A value is outside of what it can be.",
        "`aboard sandbox break --list` says what each takes.",
    ),
    (
        "sandbox-fault-clash",
        "the host is broken already in a way that goes against it",
        "is broken already",
        "Two faults that change the same part can't be healed one by one.",
        "Heal the one that is there first: `sudo aboard sandbox heal NAME`.",
    ),
    (
        "sandbox-no-process",
        "no process of the host is like that",
        "no process of n1 has",
        "The fault is done to a process, and there is none with that number or variable.",
        "`sudo aboard sandbox exec --node n1 -- ps -ef`.",
    ),
    (
        "sandbox-path-taken",
        "what was moved away can't come back",
        "something new is there",
        "While the fault lasted, something was written under the same name.",
        "Move that aside, as the message says, then heal again.",
    ),
)

SANDBOX = Subject(
    name="sandbox",
    title="there is a practice cluster",
    probes=(),
    rules=(),
    stories=stories(_ROWS),
    asked="aboard sandbox",
)
