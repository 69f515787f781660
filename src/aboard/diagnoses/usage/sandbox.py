"""Diagnoses of a sandbox that can't be created, or a fault that can't be injected."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice

_TAKE_DOWN = "aboard sandbox down    # then create it again: aboard sandbox up"
_DOWN = {"usual": _TAKE_DOWN, "named": "aboard sandbox down --name {name}"}

ROOT = Diagnosis(
    code="sandbox-root",
    title="a sandbox needs root",
    symptoms=("needs root",),
    explanation="Only root can create hosts with a network, mounts and an sshd. Training in the sandbox runs as an"
    " ordinary user.",
    fixes="sudo {aboard} sandbox {verb}",
)

LINUX = Diagnosis(
    code="sandbox-linux",
    title="a sandbox needs Linux",
    symptoms=("a sandbox is made of Linux namespaces",),
    explanation="A sandbox is made of Linux namespaces, which other systems do not have.",
    fixes=Advice("run `aboard sandbox up` on a Linux machine or in a Linux virtual machine"),
)

PRIVILEGES = Diagnosis(
    code="sandbox-privileges",
    title="root is not allowed to create namespaces here",
    symptoms=("unshare failed: Operation not permitted",),
    explanation="Creating namespaces requires CAP_SYS_ADMIN, which root in a container often lacks.",
    fixes=Advice("run it on the machine itself, or in a container started with --privileged"),
)

KERNEL = Diagnosis(
    code="sandbox-kernel",
    title="the kernel lacks a required feature",
    symptoms=("RTNETLINK answers: Operation not supported",),
    explanation="The sandbox needs kernel features such as bridges, veth pairs and connection tracking, and this"
    " kernel lacks one of them.",
    fixes={
        "module": "sudo modprobe {part}",
        "boot": Advice("boot a kernel with {option}"),
        "groups": Advice("boot with systemd.unified_cgroup_hierarchy=0"),
    },
)

PROGRAM = Diagnosis(
    code="sandbox-program",
    title="a program is missing",
    symptoms=("not installed here",),
    explanation="Sandbox hosts run real programs, such as sshd, ip and nft. Some faults need more programs.",
    fixes="sudo apt-get install -y {packages:words}",
)

SOURCE = Diagnosis(
    code="sandbox-source",
    title="other users can't read this Aboard installation",
    symptoms=("can't be read by other users",),
    explanation="On a sandbox host you are an ordinary user, and that user must be able to run Aboard.",
    fixes="chmod -R o+rX {source}",
)

BUILD = Diagnosis(
    code="sandbox-build",
    title="the sandbox could not be created",
    symptoms=("could not create the namespaces",),
    explanation="A step failed while the sandbox was being created, and parts of the sandbox may be left over.",
    fixes=_TAKE_DOWN,
)

NETWORK = Diagnosis(
    code="sandbox-network",
    title="the sandbox network could not be created",
    symptoms=("RTNETLINK answers: File exists",),
    explanation="An `ip` command failed, usually because parts of an earlier sandbox are left over.",
    fixes=_TAKE_DOWN,
)

SSHD = Diagnosis(
    code="sandbox-sshd",
    title="an sshd failed to start in the sandbox",
    symptoms=("sshd: no hostkeys available",),
    explanation="Each sandbox host runs its own sshd. Without it, the host can't be reached over ssh.",
    fixes=_TAKE_DOWN,
)

SLURM = Diagnosis(
    code="sandbox-slurm",
    title="Slurm failed to start in the sandbox",
    symptoms=("slurmctld: fatal",),
    explanation="Either slurmctld or slurmd exited with an error, or a node did not become idle in time.",
    fixes={"daemon": _TAKE_DOWN, "late": "aboard sandbox up --slurm --nodes {nodes} --name {name}"},
)

CONTAINERS = Diagnosis(
    code="sandbox-containers",
    title="a sandbox host could not be prepared for containers",
    symptoms=("FATAL:   While performing build: packer failed to pack",),
    explanation="With --containers, each host configures Apptainer and Podman and builds a small image for both.",
    fixes=_TAKE_DOWN,
)

STUCK = Diagnosis(
    code="sandbox-stuck",
    title="a sandbox process does not exit",
    symptoms=("does not terminate",),
    explanation="The process is blocked in the kernel, usually on a disk.",
    fixes=_DOWN,
)

BUSY = Diagnosis(
    code="sandbox-busy",
    title="another command is changing the sandbox",
    symptoms=("another aboard process has been",),
    explanation="Only one command at a time can build, break or heal a sandbox.",
    fixes={
        "host": Advice("wait until it is done, then: aboard sandbox status"),
        "named": Advice("wait until it is done, then: aboard sandbox {verb} --name {name}"),
    },
)

DOWN = Diagnosis(
    code="sandbox-down",
    title="no sandbox is up",
    symptoms=("no sandbox 'sandbox' is up",),
    explanation="The sandbox was never created, or the machine has rebooted since.",
    fixes={
        "usual": "aboard sandbox up",
        "named": "aboard sandbox up --name {name}",
        "other": "export ABOARD_SANDBOX={other}    # uses that sandbox; or pass --name {other}",
    },
)

DIFFERS = Diagnosis(
    code="sandbox-differs",
    title="a different sandbox is already up",
    symptoms=("you asked for something else",),
    explanation="The running sandbox was created with different options, such as the number of nodes or slots. A"
    " running sandbox is never changed.",
    fixes=_DOWN,
)

NAME = Diagnosis(
    code="sandbox-name",
    title="invalid sandbox name",
    symptoms=("is not a valid sandbox name",),
    explanation="The name becomes a directory name, so it can contain only lower-case letters, digits, '.', '_' and"
    " '-'.",
    fixes="aboard sandbox up --name sandbox",
)

NODES = Diagnosis(
    code="sandbox-nodes",
    title="too many or too few sandbox nodes",
    symptoms=("nodes requested",),
    explanation="A sandbox has 1 to 250 nodes.",
    fixes="aboard sandbox up --nodes 4",
)

SLOTS = Diagnosis(
    code="sandbox-slots",
    title="a node needs at least one slot",
    symptoms=("slots requested",),
    explanation="A node without slots can't run any ranks.",
    fixes="aboard sandbox up --slots 2",
)

HOST = Diagnosis(
    code="sandbox-host",
    title="the sandbox has no such host",
    symptoms=("has no host",),
    explanation="A sandbox's hosts are `head` and the nodes `n1`, `n2`, and so on.",
    fixes="aboard sandbox status --name {name}",
)

HOST_OFF = Diagnosis(
    code="sandbox-host-off",
    title="the host is powered off",
    symptoms=("is off",),
    explanation="A fault powered the host off.",
    fixes="aboard sandbox heal --name {name}",
)

FAULT = Diagnosis(
    code="sandbox-fault",
    title="the fault could not be injected",
    symptoms=("exit code 1",),
    explanation="The command that injects the fault failed, or did not finish in time.",
    fixes="aboard sandbox heal",
)

FAULT_UNKNOWN = Diagnosis(
    code="sandbox-fault-unknown",
    title="unknown fault",
    symptoms=("there is no fault",),
    explanation="`aboard sandbox break` takes the name of a fault; `--list` shows all of them.",
    fixes="aboard sandbox break --list",
)

FAULT_OPTION = Diagnosis(
    code="sandbox-fault-option",
    title="invalid fault option",
    symptoms=("is out of range",),
    explanation="An option's value is outside its valid range.",
    remedy="`aboard sandbox break --list` shows the options of each fault.",
    fixes={
        "rate": "aboard sandbox break rate --mbit 50",
        "loss": "aboard sandbox break loss --percent 5",
        "delay": "aboard sandbox break delay --ms 50",
        "fabric": "aboard sandbox down && aboard sandbox up --fabric",
        "ports": Advice("write ports as 29500, 1024-65535 or 22,29500-29600"),
        "port-taken": "aboard sandbox break port-taken --port 29500",
        "conntrack-full": "aboard sandbox break conntrack-full",
        "conntrack-max": "sudo sysctl -w net.netfilter.nf_conntrack_max={most}",
        "memory-limit": "aboard sandbox break memory-limit --mib {least}",
        "cpu-quota": "aboard sandbox break cpu-quota --cores {least}",
        "few-tasks": "aboard sandbox break few-tasks --tasks {least}",
        "sshd-stopped": "aboard sandbox heal sshd-stopped --node {node}",
        "sshd-slow": "aboard sandbox break sshd-slow --seconds 10",
        "process": "aboard sandbox break {fault} --environ RUN_ID",
        "other-python": "aboard sandbox break other-python --without torch",
        "program": "aboard sandbox exec --node {node} -- ls -l {program}",
        "disk-full": "aboard sandbox break disk-full --node {node} --path /private",
        "containers": "aboard sandbox down --name {name} && aboard sandbox up --containers --name {name}",
        "slurm": "aboard sandbox down --name {name} && aboard sandbox up --slurm --name {name}",
        "slurm-daemon": "aboard sandbox break {fault} --node {node} --name {name}",
        "few-srun-ports": "aboard sandbox break few-srun-ports --node n1 --ports 6",
        "path": Advice("for example: --path /private"),
        "nothing": "aboard sandbox exec --node {node} -- ls -d {path}",
    },
)

FAULT_CLASH = Diagnosis(
    code="sandbox-fault-clash",
    title="the fault conflicts with an active fault",
    symptoms=("conflicts with a fault",),
    explanation="Two faults that change the same part of a host can't be healed separately.",
    fixes="aboard sandbox heal {fault} --node {node} --name {name}",
)

NO_PROCESS = Diagnosis(
    code="sandbox-no-process",
    title="no process on the host matches the fault's options",
    symptoms=("no process on n1 has",),
    explanation="The fault targets a process, and no process on the host has that id or environment variable.",
    fixes="aboard sandbox exec --node {node} -- ps -ef",
)

PATH_TAKEN = Diagnosis(
    code="sandbox-path-taken",
    title="a moved path can't be restored",
    symptoms=("something new is there",),
    explanation="While the fault was active, something was written to the same path, so the original can't be moved"
    " back.",
    fixes="aboard sandbox exec --node {node} --root -- mv {path} {path}.new    # then heal again",
)
