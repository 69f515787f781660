"""Diagnoses of a sandbox that can't be created, or a fault that can't be injected."""

from aboard.diagnoses.diagnosis import Diagnosis, Mistake
from aboard.diagnoses.fixes import Advice

_TAKE_DOWN = "aboard sandbox down    # then create it again: aboard sandbox up"
_DOWN = {"usual": _TAKE_DOWN, "named": "aboard sandbox down --name {name}"}

ROOT = Mistake(code="sandbox-root", fixes="sudo {aboard} sandbox {verb}")

LINUX = Mistake(
    code="sandbox-linux", fixes=Advice("run `aboard sandbox up` on a Linux machine or in a Linux virtual machine")
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

BUSY = Mistake(
    code="sandbox-busy",
    fixes={
        "host": Advice("wait until it is done, then: aboard sandbox status"),
        "named": Advice("wait until it is done, then: aboard sandbox {verb} --name {name}"),
    },
)

DOWN = Mistake(
    code="sandbox-down",
    fixes={
        "usual": "aboard sandbox up",
        "named": "aboard sandbox up --name {name}",
        "other": "export ABOARD_SANDBOX={other}    # uses that sandbox; or pass --name {other}",
    },
)

DIFFERS = Mistake(code="sandbox-differs", fixes=_DOWN)

NAME = Mistake(code="sandbox-name", fixes="aboard sandbox up --name sandbox")

NODES = Mistake(code="sandbox-nodes", fixes="aboard sandbox up --nodes 4    # 1 to 250 nodes")

SLOTS = Mistake(code="sandbox-slots", fixes="aboard sandbox up --slots 2")

HOST = Mistake(code="sandbox-host", fixes="aboard sandbox status --name {name}")

HOST_OFF = Mistake(code="sandbox-host-off", fixes="aboard sandbox heal --name {name}")

FAULT = Diagnosis(
    code="sandbox-fault",
    title="the fault could not be injected",
    symptoms=("exit code 1",),
    explanation="The command that injects the fault failed, or did not finish in time.",
    fixes="aboard sandbox heal",
)

FAULT_UNKNOWN = Mistake(code="sandbox-fault-unknown", fixes="aboard sandbox break --list")

FAULT_OPTION = Mistake(
    code="sandbox-fault-option",
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

FAULT_CLASH = Mistake(code="sandbox-fault-clash", fixes="aboard sandbox heal {fault} --node {node} --name {name}")

NO_PROCESS = Mistake(code="sandbox-no-process", fixes="aboard sandbox exec --node {node} -- ps -ef")

PATH_TAKEN = Diagnosis(
    code="sandbox-path-taken",
    title="a moved path can't be restored",
    symptoms=("something new is there",),
    explanation="While the fault was active, something was written to the same path, so the original can't be moved"
    " back.",
    fixes="aboard sandbox exec --node {node} --root -- mv {path} {path}.new    # then heal again",
)
