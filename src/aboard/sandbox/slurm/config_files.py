"""Slurm's config files, the same on every host; settings not in them keep Slurm's defaults."""

from aboard.sandbox.layout import HEAD, SandboxLayout

CONTROLLER = HEAD
LOGS = "/var/log/slurm"
STATE = "/var/spool/slurmctld"
SPOOL = "/var/spool/slurmd"
SLURM_CONF = "/etc/slurm/slurm.conf"
SLURMCTLD_PID = "/run/slurmctld.pid"
SLURMD_PID = "/run/slurmd.pid"
MUNGED_PID = "/run/munge/munged.pid"
#: Above the ports that the kernel chooses, and enough for hundreds of sruns at once.
SRUN_PORTS = (61001, 63000)

CGROUP_CONF = """\
# A host has no cgroups. By default slurmd looks for some and exits; with version 1 it uses none.
CgroupPlugin=cgroup/v1
"""


def format_slurm_conf(layout: SandboxLayout, *, cpus: int, memory: int) -> str:
    """slurm.conf for nodes with this many CPUs and MiB of memory; a slot is a GPU."""
    nodes = _format_node_range(layout)
    return f"""\
# A practice cluster's Slurm: slurmctld on {CONTROLLER}, slurmd on {nodes}, no accounting, no cgroups.
ClusterName=sandbox
SlurmctldHost={CONTROLLER}
SlurmUser=root
SlurmctldPidFile={SLURMCTLD_PID}
SlurmdPidFile={SLURMD_PID}
SlurmctldLogFile={LOGS}/slurmctld.log
SlurmdLogFile={LOGS}/slurmd.log
StateSaveLocation={STATE}
SlurmdSpoolDir={SPOOL}

# One range, so that a firewall rule can cover srun's ports.
SrunPortRange={SRUN_PORTS[0]}-{SRUN_PORTS[1]}

# Plugins that work without cgroups.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/linux

SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu

# A job that waits starts within seconds after its nodes are free, instead of a minute.
SchedulerParameters=sched_interval=2,bf_interval=2

# A dead node is noticed within half a minute instead of five, and returns as soon as it registers again.
SlurmctldTimeout=20
SlurmdTimeout=20
ReturnToService=2
KillWait=5

# A requeued job waits this long before it starts again; the default is two minutes.
AuthInfo=cred_expire=30

# A job in debug takes the nodes of jobs in the other two partitions.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE

# All nodes are one machine: use the line below, not what slurmd detects.
SlurmdParameters=config_overrides
NodeName={nodes} CPUs={cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={memory} \
Gres=gpu:{layout.slots} State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
PartitionName=preempt-cancel Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=CANCEL GraceTime=5
PartitionName=preempt-requeue Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
"""


def format_gres_conf(layout: SandboxLayout) -> str:
    """gres.conf: each slot is a device file, so that a step sees CUDA_VISIBLE_DEVICES as on a GPU node."""
    return f"""\
# Dummy device files: Slurm allocates them like GPUs.
AutoDetect=off
NodeName={_format_node_range(layout)} Name=gpu File={_format_range("/dev/sandbox-gpu", 0, layout.slots - 1)}
"""


def list_gpu_files(layout: SandboxLayout) -> list[str]:
    """The device files in gres.conf."""
    return [f"/dev/sandbox-gpu{slot}" for slot in range(layout.slots)]


def _format_node_range(layout: SandboxLayout) -> str:
    return _format_range("n", 1, layout.nodes)


def _format_range(stem: str, first: int, last: int) -> str:
    """Slurm's short form: n1, n[1-4]."""
    return f"{stem}{first}" if first == last else f"{stem}[{first}-{last}]"
