"""A practice cluster that can't be had, or can't be broken as asked."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice, FixCommand

_TAKE_DOWN = FixCommand("aboard sandbox down    # then make it anew: aboard sandbox up")
_DOWN = {"usual": _TAKE_DOWN, "named": FixCommand("aboard sandbox down --name {name}")}

ROOT = Diagnosis(
    code="sandbox-root",
    title="a sandbox needs root",
    symptoms=("needs root",),
    explanation="Only root may make hosts with a network, mounts and an sshd; training runs as an ordinary user.",
    fixes="sudo {aboard} sandbox {verb}",
)

LINUX = Diagnosis(
    code="sandbox-linux",
    title="a sandbox needs Linux",
    symptoms=("a sandbox is made of Linux namespaces",),
    explanation="Other systems have no namespaces.",
    fixes=Advice("run `aboard sandbox up` on a Linux machine or in a Linux virtual machine"),
)

PRIVILEGES = Diagnosis(
    code="sandbox-privileges",
    title="root may not make namespaces here",
    symptoms=("unshare failed: Operation not permitted",),
    explanation="The root of a container often lacks CAP_SYS_ADMIN.",
    fixes=Advice("run it on the machine itself, or in a container started with --privileged"),
)

KERNEL = Diagnosis(
    code="sandbox-kernel",
    title="the kernel lacks a part that is needed",
    symptoms=("RTNETLINK answers: Operation not supported",),
    explanation="Bridges, veth pairs, connection tracking and the like are modules that this kernel doesn't have.",
    fixes={
        "module": FixCommand("sudo modprobe {part}"),
        "boot": Advice("boot a kernel with {option}"),
        "groups": Advice("boot with systemd.unified_cgroup_hierarchy=0"),
    },
)

PROGRAM = Diagnosis(
    code="sandbox-program",
    title="a program is missing",
    symptoms=("not installed here",),
    explanation="Hosts are made of real programs: sshd, ip, nft, and some faults of others.",
    fixes="sudo apt-get install -y {packages:words}",
)

SOURCE = Diagnosis(
    code="sandbox-source",
    title="other users can't read this Aboard",
    symptoms=("can't be read by other users",),
    explanation="On a practice host you are an ordinary user, who must be able to run it.",
    fixes="chmod -R o+rX {source}",
)

BUILD = Diagnosis(
    code="sandbox-build",
    title="the sandbox could not be made",
    symptoms=("no namespaces could be made",),
    explanation="A part of it failed, which the message names.",
    fixes=_TAKE_DOWN,
)

NETWORK = Diagnosis(
    code="sandbox-network",
    title="the sandbox's network could not be made",
    symptoms=("RTNETLINK answers: File exists",),
    explanation="`ip` refused a part of it; most often something of an earlier one is left.",
    fixes=_TAKE_DOWN,
)

SSHD = Diagnosis(
    code="sandbox-sshd",
    title="an sshd of the sandbox doesn't start",
    symptoms=("sshd: no hostkeys available",),
    explanation="The message has its own words.",
    fixes=_TAKE_DOWN,
)

SLURM = Diagnosis(
    code="sandbox-slurm",
    title="Slurm of the sandbox doesn't start",
    symptoms=("slurmctld: fatal",),
    explanation="The message has the daemon's own words.",
    fixes={"daemon": _TAKE_DOWN, "late": FixCommand("aboard sandbox up --slurm --nodes {nodes} --name {name}")},
)

STUCK = Diagnosis(
    code="sandbox-stuck",
    title="a process of the sandbox doesn't end",
    symptoms=("doesn't end",),
    explanation="It waits in the kernel, most often for a disk.",
    fixes=_DOWN,
)

BUSY = Diagnosis(
    code="sandbox-busy",
    title="another command works on the sandbox",
    symptoms=("another aboard has been",),
    explanation="One at a time builds, breaks and heals.",
    fixes={
        "host": Advice("wait until it is done, then: aboard sandbox status"),
        "named": Advice("wait until it is done, then: aboard sandbox {verb} --name {name}"),
    },
)

DOWN = Diagnosis(
    code="sandbox-down",
    title="no sandbox is up",
    symptoms=("no sandbox 'sandbox' is up",),
    explanation="It was never made, or the machine was started anew since.",
    fixes={"usual": FixCommand("aboard sandbox up"), "named": FixCommand("aboard sandbox up --name {name}")},
)

DIFFERS = Diagnosis(
    code="sandbox-differs",
    title="a sandbox of another shape is up",
    symptoms=("that isn't what you ask for",),
    explanation="It has another number of nodes or slots, and is never changed while it is up.",
    fixes=_DOWN,
)

NAME = Diagnosis(
    code="sandbox-name",
    title="a sandbox can't have that name",
    symptoms=("can't name a sandbox",),
    explanation="It becomes the name of a directory: small letters, digits, '.', '_' and '-'.",
    fixes="aboard sandbox up --name sandbox",
)

NODES = Diagnosis(
    code="sandbox-nodes",
    title="a sandbox can't have so many nodes",
    symptoms=("nodes asked for",),
    explanation="There is a most, which the message has.",
    fixes="aboard sandbox up --nodes 4",
)

SLOTS = Diagnosis(
    code="sandbox-slots",
    title="a node has at least one slot",
    symptoms=("slots asked for",),
    explanation="Without one it would start no rank.",
    fixes="aboard sandbox up --slots 2",
)

HOST = Diagnosis(
    code="sandbox-host",
    title="the sandbox has no such host",
    symptoms=("has no host",),
    explanation="It has head, and n1 to the last.",
    fixes="aboard sandbox status --name {name}",
)

HOST_OFF = Diagnosis(
    code="sandbox-host-off",
    title="the host is off",
    symptoms=("is off",),
    explanation="A fault switched it off.",
    fixes="aboard sandbox heal --name {name}",
)

FAULT = Diagnosis(
    code="sandbox-fault",
    title="the fault could not be made",
    symptoms=("ended with 1",),
    explanation="What was to break the host failed itself; the message has its words.",
    fixes="aboard sandbox heal",
)

FAULT_UNKNOWN = Diagnosis(
    code="sandbox-fault-unknown",
    title="there is no such fault",
    symptoms=("there is no fault",),
    explanation="Faults have names.",
    fixes="aboard sandbox break --list",
)

FAULT_OPTION = Diagnosis(
    code="sandbox-fault-option",
    title="the fault can't be had like that",
    symptoms=("can't be had",),
    explanation="A value is outside of what it can be.",
    remedy="`aboard sandbox break --list` says what each takes.",
    fixes={
        "rate": FixCommand("aboard sandbox break rate --mbit 50"),
        "loss": FixCommand("aboard sandbox break loss --percent 5"),
        "delay": FixCommand("aboard sandbox break delay --ms 50"),
        "fabric": FixCommand("aboard sandbox down && aboard sandbox up --fabric"),
        "ports": Advice("write ports as 29500, 1024-65535 or 22,29500-29600"),
        "port-taken": FixCommand("aboard sandbox break port-taken --port 29500"),
        "conntrack-full": FixCommand("aboard sandbox break conntrack-full"),
        "conntrack-max": FixCommand("sudo sysctl -w net.netfilter.nf_conntrack_max={most}"),
        "memory-limit": FixCommand("aboard sandbox break memory-limit --mib {least}"),
        "cpu-quota": FixCommand("aboard sandbox break cpu-quota --cores {least}"),
        "few-tasks": FixCommand("aboard sandbox break few-tasks --tasks {least}"),
        "sshd-stopped": FixCommand("aboard sandbox heal sshd-stopped --node {node}"),
        "sshd-slow": FixCommand("aboard sandbox break sshd-slow --seconds 10"),
        "process": FixCommand("aboard sandbox break {fault} --environ RUN_ID"),
        "other-python": FixCommand("aboard sandbox break other-python --without torch"),
        "program": FixCommand("aboard sandbox exec --node {node} -- ls -l {program}"),
        "disk-full": FixCommand("aboard sandbox break disk-full --node {node} --path /private"),
        "path": Advice("write it as --path /private"),
        "nothing": FixCommand("aboard sandbox exec --node {node} -- ls -d {path}"),
    },
)

FAULT_CLASH = Diagnosis(
    code="sandbox-fault-clash",
    title="the host is broken already in a way that goes against it",
    symptoms=("is broken already",),
    explanation="Two faults that change the same part can't be healed one by one.",
    fixes="aboard sandbox heal {fault} --node {node} --name {name}",
)

NO_PROCESS = Diagnosis(
    code="sandbox-no-process",
    title="no process of the host is like that",
    symptoms=("no process of n1 has",),
    explanation="The fault is done to a process, and there is none with that number or variable.",
    fixes="aboard sandbox exec --node {node} -- ps -ef",
)

PATH_TAKEN = Diagnosis(
    code="sandbox-path-taken",
    title="what was moved away can't come back",
    symptoms=("something new is there",),
    explanation="While the fault lasted, something was written under the same name.",
    fixes="aboard sandbox exec --node {node} --root -- mv {path} {path}.new    # then heal again",
)
