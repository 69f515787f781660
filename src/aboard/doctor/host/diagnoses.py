"""Hosts: clock, names, resource limits, and what earlier runs left behind."""

from aboard.diagnoses.diagnosis import Diagnosis, remark, warning
from aboard.diagnoses.fixes import Advice
from aboard.diagnoses.output_patterns import cause, end

_RESTART_SSH = "sudo systemctl restart ssh    # on {node}; if sshd itself was started with the low limit"
_MEMORY_MAX = (
    "systemctl show user-$(id -u).slice -p MemoryMax    # on {node}; in Slurm or Docker, request more memory\n"
    "sudo systemctl set-property user-$(id -u).slice MemoryMax=infinity    # on {node}; if the slice sets the limit"
)

_STOP_RUN = "aboard stop {run}    # only if you no longer need that run; or wait for its end: aboard status"

CLOCK = Diagnosis(
    code="host-clock",
    title="a node's clock is off",
    symptoms=(
        "WORLD_SIZE=1 on one node, with exit code 0, while the others fail",
        "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
        "slurm: error: Munge decode failed: Expired credential",
    ),
    explanation="torchrun considers a peer dead if its clock is 15 s off, so one node ends up training alone. Slurm's"
    " munge rejects the node's credentials, and log lines from different nodes can't be put in order. If all nodes are"
    " off by the same amount, this machine's clock is wrong.",
    fixes="sudo systemctl restart chrony || sudo systemctl restart systemd-timesyncd    # on {node}",
    log_fix="chronyc tracking    # on {node}; `sudo systemctl restart chronyd; sudo chronyc makestep` corrects it at"
    " once",
    patterns=cause(
        r"[Mm]unge decode failed: (?:Expired|Rewound) credential|Expired credential|Rewound credential",
        "The clocks of two nodes differ by more than a few minutes, so Slurm rejects their credentials.",
    ),
    leads_to=("reach-slurmd-refused", "reach-step-aborted", "reach-not-in-job", "reach-node-failed", "slurm-node-down"),
)

LEFTOVERS = warning(
    code="host-leftovers",
    title="processes from an earlier run are still running",
    symptoms=(
        "CUDA out of memory, at once, on one node",
        "The server socket has failed to listen on any local network address.",
        "code: -98, name: EADDRINUSE, message: address already in use",
    ),
    explanation="These processes carry the id of a run (ABOARD_RUN_ID) whose supervisor was killed before it could"
    " terminate them. They hold memory, accelerators and ports, so the next run fails with `out of memory` or `Address"
    " already in use`.",
    fixes="aboard check --fix    # here; repeats the check and terminates the processes on {node} that carry the"
    " run's id",
    leads_to=("network-port-taken", "host-busy-gpu"),
)

LEFTOVER_FILES = remark(
    code="host-leftover-files",
    title="directories from dead runs are left in /tmp",
    symptoms=("a directory from a run that is over, such as aboard-1000/RUN",),
    explanation="The supervisors of these runs were killed before they could clean up, and none of the runs' processes"
    " is still running. The directories contain the ranks' last output, so copy what you need before you remove them.",
    fixes="aboard check --fix    # here; repeats the check and removes them on {node}",
)

OTHER_RANKS = warning(
    code="host-other-ranks",
    title="ranks started by another launcher are running",
    symptoms=("EADDRINUSE", "CUDA out of memory", "python processes that survive `pkill deepspeed`"),
    explanation="These processes have RANK and MASTER_ADDR set, run as your user, and were not started by Aboard. They"
    " may hold memory, accelerators or ports that the next run needs. torchrun, DeepSpeed and mpirun leave ranks"
    " behind when their ssh connection is cut. Ranks whose launcher is still running may belong to a healthy run of"
    " yours.",
    fixes="ps -o pid,etime,args -p {listed}    # on {node}; are they still needed?\n"
    "kill {pids:words}    # on {node}; if not",
    leads_to=("network-port-taken", "host-busy-gpu"),
)

ACTIVE_RUN = warning(
    code="host-active-run",
    title="another run of yours is active on these nodes",
    symptoms=("CUDA out of memory", "each step takes twice as long", "code: -98, name: EADDRINUSE"),
    explanation="Two runs on a node share its cores, accelerators, memory and links, and may delay or break each other."
    " With different accelerators for each run (`--include n1:0-3`), they can run side by side.",
    fixes="aboard stop {run}    # or wait for its end: aboard status {run} --follow",
)

LOGIN_NODE = Diagnosis(
    code="host-login-node",
    title="this is a login node of a Slurm cluster",
    symptoms=("one rank runs on the login node", "processes on login nodes are killed"),
    explanation="No node was named, so Aboard would use this machine only. Many sites forbid such work on login nodes.",
    remedy="Describe the job in `cluster.slurm` of aboard.yaml: Aboard submits and follows it. Or start Aboard inside a"
    " job.",
    fixes="salloc --nodes=2    # then the same command in its shell; or describe the job in cluster.slurm;"
    " `aboard launch --alone` runs here",
)

LEFTOVERS_ENDED = remark(
    code="host-leftovers-ended",
    title="leftover processes were terminated",
    symptoms=("terminated 3 processes from dead runs",),
    explanation="Aboard terminated the processes because you passed `--fix`. It terminates only processes that carry a"
    " dead run's id.",
    remedy="No action is needed.",
)

TMP_TAKEN = warning(
    code="host-tmp-taken",
    title="the user's directory in /tmp is not private",
    symptoms=("aboard-1000 (drwxr-xr-x) belongs to user mallory, uid 1001",),
    explanation="Runs keep their sockets and their last output in /tmp/aboard-UID, which must be a private directory of"
    " the user. Here it is another user's, a link, a file, or open to others. Runs use a directory with a random name"
    " beside it instead, so launches work. If another user owns it, ask them: it does not happen by accident.",
    fixes="sudo ls -la {path}    # on {node}; what is it?\nsudo rm -r {path}    # on {node}; if it isn't needed",
)

OWN_NAME = warning(
    code="host-own-name",
    title="a node's hostname resolves to a loopback address",
    symptoms=(
        "Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
        "connect [127.0.1.1]:41896: Connection refused",
        "Unable to resolve hostname to a (local) address. Using the loopback address as fallback.",
    ),
    explanation="Debian's and Ubuntu's installers write `127.0.1.1 HOSTNAME` into /etc/hosts. Gloo tells peers to"
    " connect to the address that the node's own hostname resolves to, so each peer connects to itself.",
    fixes="sudo sed -i {edit} /etc/hosts    # on {node}\necho {line} | sudo tee -a /etc/hosts    # on {node}",
    log_fix="getent hosts $(hostname)    # on {node}; must not print 127.0.1.1\n"
    "export GLOO_SOCKET_IFNAME=eth0    # the interface that peers can reach; Gloo then ignores the hostname",
    patterns=cause(
        r"connect \[(?P<peer2>127\.[\d.]+|::1)\]:\d+: Connection refused"
        r"|connectFullMesh failed.*remote=\[(?P<peer>127\.[\d.]+|::1)\]|(?:Connection refused"
        r"|timed out).*remote=\[127\.",
        "A node's hostname resolves to a loopback address in its /etc/hosts, and the node tells its peers to connect"
        " there.",
    ),
)

OPEN_FILES = warning(
    code="host-open-files",
    title="the open file limit is too low",
    symptoms=("OSError: [Errno 24] Too many open files", "RuntimeError: received 0 items of ancdata"),
    explanation="Each connection to a peer, each data loader worker, each tensor passed between processes and each"
    " shard needs an open file; above the limit, a rank dies with `Too many open files`. Ranks inherit the limit from"
    " sshd, slurmd or the container (`--ulimit nofile=1048576`), not from your terminal.",
    fixes={
        "setup": Advice("setup: {lines}    # in aboard.yaml, for {node}"),
        "raise": (
            "echo '* - nofile 1048576' | sudo tee /etc/security/limits.d/90-nofile.conf    # on {node};"
            " for new logins\n" + _RESTART_SSH
        ),
        "kernel": "sysctl fs.file-nr    # on {node}: open files, unused, limit; which process has them: sudo lsof | awk"
        " '{{print $1}}' | sort | uniq -c | sort -n | tail\n"
        "sudo sysctl fs.file-max=9223372036854775807    # on {node}",
        "shared": "ulimit -n 65536; df -h /dev/shm    # on {node}, in the shell that ranks get\n"
        "torch.multiprocessing.set_sharing_strategy('file_system')    # in your script; needs fewer open files",
    },
    log_fix="ulimit -n 65536    # on {node}, in the shell that ranks get; or raise LimitNOFILE in slurmd's or sshd's"
    " unit\n"
    "torch.multiprocessing.set_sharing_strategy('file_system')    # in your script; needs fewer open files",
    patterns=(
        cause(
            r"Too many open files|received \d+ items of ancdata|Errno 24\b",
            "A process has reached its limit on open files and sockets.",
        ),
        cause(
            r"VFS: file-max limit (?P<limit>\d+) reached",
            "The kernel's own limit on open files of all processes (fs.file-max = {limit}) is reached on this node.",
            fix="kernel",
        ),
        cause(
            r"unable to open shared memory object </torch_",
            "Data loader workers pass tensors through shared memory, and each tensor needs an open file. Either there"
            " are too many tensors, or /dev/shm is full.",
            fix="shared",
            weight=2,
        ),
    ),
)

PROCESSES = warning(
    code="host-processes",
    title="the user's process limit is too low",
    symptoms=(
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 12 of 64",
        "RuntimeError: can't start new thread",
    ),
    explanation="Each rank and each data loader worker has dozens of threads; above the limit, no new thread can"
    " start. The limit counts all of the user's processes and threads on that machine, including those of other runs.",
    fixes={
        "setup": Advice("setup: {lines}    # in aboard.yaml, for {node}"),
        "raise": (
            "echo '* - nproc unlimited' | sudo tee /etc/security/limits.d/90-nproc.conf    # on {node};"
            " for new logins\n" + _RESTART_SSH
        ),
    },
    log_fix="ulimit -u; cat /sys/fs/cgroup/pids.max    # on {node}, where ranks start\n"
    "export OMP_NUM_THREADS=1    # fewer threads in each rank",
    patterns=cause(
        r"can't start new thread|pthread_create failed|fork: (?:retry: )?Resource temporarily unavailable"
        r"|BlockingIOError: \[Errno 11\]|libgomp: Thread creation failed",
        "The user or the job's cgroup has reached its limit on processes and threads.",
    ),
)

_SMALL_SHM = "Shared memory (/dev/shm) is too small or full; in a container, its default size is 64 MiB."
SHM = warning(
    code="host-shm",
    title="shared memory (/dev/shm) is too small or full",
    symptoms=(
        "DataLoader worker (pid 1234) is killed by signal: Bus error.",
        "It is possible that dataloader's workers are out of shared memory.",
        "Error: failed to extend /dev/shm/nccl-AbCdEf to 9637892 bytes",
        "OSError: [Errno 28] No space left on device: '/dev/shm/...'",
    ),
    explanation="Data loaders pass batches through /dev/shm, and NCCL uses it between ranks on the same node. When it"
    " is full, ranks and data loader workers die. Docker gives a container 64 MiB by default; in Kubernetes, mount an"
    " emptyDir with `medium: Memory` at /dev/shm. Runs that were killed leave their shared memory segments behind.",
    fixes={
        "small": "sudo mount -o remount,size=50% /dev/shm    # on {node}; to keep the size after a reboot, set it in"
        " /etc/fstab too\n"
        "# if {node} is a container, start it with --shm-size=32g or --ipc=host instead",
        "full": "ls -lS /dev/shm | head    # on {node}; whose files are these?\n"
        "find /dev/shm -user $USER -name 'nccl-*' -delete    # on {node}; removes dead runs' segments; only if no"
        " run of yours is active",
    },
    log_fix="df -h /dev/shm    # on {node}, inside the container\n"
    "docker run --shm-size=16g …    # or --ipc=host; Apptainer: --bind /dev/shm",
    patterns=(
        cause(
            r"srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)[\d,-]*: Bus error|insufficient shared memory"
            r"|worker.*killed by signal: Bus error|^Bus error|Bus error \(core|unable to write to file </torch_"
            r"|No space left on device.*/dev/shm",
            _SMALL_SHM,
            precedence=450,
        ),
        cause(
            r"[Ee]rror: failed to extend (?P<file>/dev/shm/\S+) to (?P<size>\d+) bytes|Error while (?:creating"
            r"|attaching to) shared memory|shm\w*\.(?:h|cc):\d+ NCCL WARN Call to \w+ failed ?: No space left",
            _SMALL_SHM,
            precedence=450,
        ),
        end(
            r"exitcode: -7\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)|return code = -7\b"
            r"|Signal 7 \(SIGBUS\) received by PID (?P<pid2>\d+)",
            "Signal 7 is a bus error. Usually a page of shared memory could not be allocated because /dev/shm is full"
            " or too small.",
            weight=3,
        ),
    ),
)

MEMORY = warning(
    code="host-memory",
    title="hardly any memory is free",
    symptoms=(
        "exitcode: -9",
        "Out of memory: Killed process 1234 (python3)",
        "RuntimeError: [enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory",
    ),
    explanation="Other processes, often from an earlier run, or files in /dev/shm are using the memory. Ranks will be"
    " killed when they load the model.",
    fixes={
        "list": "ps -eo user,pid,rss,args --sort=-rss | head    # on {node}; lists the processes that use the most"
        " memory",
        "run": _STOP_RUN,
    },
    log_fix="free -g; cat /sys/fs/cgroup/memory.max    # on {node}; total memory and the cgroup's limit",
    patterns=cause(
        r"\[Errno 12\] Cannot allocate memory|std::bad_alloc|^MemoryError|DefaultCPUAllocator: (?:can't|not enough)"
        r"|unable to mmap \d+ bytes|cudaHostAlloc.*(?:failed|out of memory)|Failed to (?:pin|register) memory",
        "The host ran out of memory, or an allocation was far too large.",
    ),
)

MEMORY_LIMIT = warning(
    code="host-memory-limit",
    title="a cgroup gives ranks far less memory than the machine has",
    symptoms=("exitcode: -9", "Memory cgroup out of memory: Killed process", "slurmstepd: error: Detected 1 oom_kill"),
    explanation="A container, a Slurm job or a systemd slice limits the memory of everything inside it. A rank that"
    " exceeds the limit is killed with SIGKILL (exit code -9), however much memory the machine has free.",
    fixes=_MEMORY_MAX,
    leads_to=("host-oom-kills",),
)

OOM_KILLS = warning(
    code="host-oom-kills",
    title="processes were OOM-killed in the ranks' cgroup",
    symptoms=("exitcode: -9", "oom_kill 3 in memory.events"),
    explanation="The cgroup in which ranks will run has already run out of memory. Ranks that need as much memory as"
    " the killed processes will be killed too.",
    fixes={
        "": (_MEMORY_MAX + "\n# or use fewer data loader workers, a smaller batch, or no copy of the dataset per rank"),
        "worker": "sudo dmesg -T | grep -i 'killed process'    # on {node}; did memory run out?",
    },
    log_fix="sudo dmesg -T | grep -i 'killed process'    # on {node}; shows the process and its size\n"
    "#SBATCH --mem=0    # all of the node's memory; or use fewer data loader workers, no copies of the dataset per"
    " rank, or more memory for the job",
    patterns=(
        cause(
            r"(?:Memory cgroup out of memory|Out of memory): Kill(?:ed)? process (?P<pid>\d+)|oom-kill:constraint="
            r"|oom_reaper: reaped|Detected \d+ oom[-_]kill event"
            r"|srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)[\d,-]*: Out Of Memory|OUT_OF_MEMORY|OOMKilled"
            r"|exceeded (?:job|step) memory limit",
            "The host's memory, or the job's share of it, ran out, and the kernel killed the largest process.",
            late=True,
        ),
        cause(
            r"DataLoader worker \(pid(?:\(s\))? (?P<pid>[\d, ]+)\) is killed by signal: Killed",
            "A data loader worker was killed, which the kernel does when memory runs out. Use fewer data loader"
            " workers, avoid a copy of the dataset in each rank, or request more memory for the job.",
            fix="worker",
        ),
    ),
)

AFFINITY = warning(
    code="host-affinity",
    title="ranks are limited to a few of the machine's cores",
    symptoms=("all ranks slow, one core at 100 %", "Our suggested max number of worker in current system is 1"),
    explanation="A rank can use only the cores of the sshd, Slurm step or container that started it (`grep"
    " Cpus_allowed_list /proc/self/status`). All ranks, data loaders and communication threads share these cores, so"
    " every step is slow, without any error.",
    fixes={
        "sshd": "sudo systemctl restart ssh    # on {node}; sessions inherit sshd's cores. If that doesn't help, check"
        " CPUAffinity= in ssh.service, cpusets, or the container's cores",
        "job": "sbatch --ntasks-per-node=1 --cpus-per-task={cores} …    # or in #SBATCH lines, or under"
        " cluster.slurm.extra in aboard.yaml; --exclusive gives all cores",
    },
)

CPU_QUOTA = warning(
    code="host-cpu-quota",
    title="a cgroup limits ranks to the CPU time of a few cores",
    symptoms=("all ranks slow although most cores are idle", "nr_throttled grows in cpu.stat"),
    explanation="The kernel pauses all ranks whenever their quota is used up, so every step is slow. Each program"
    " still sees all cores and starts as many threads as there are cores.",
    fixes="cat {group}/cpu.max {group}/cpu.cfs_quota_us    # on {node}; raise the quota where it is set: Docker's"
    " --cpus, Kubernetes' limits.cpu, or the service's CPUQuota=",
)

TASKS = warning(
    code="host-tasks",
    title="a cgroup's process limit is too low for the ranks",
    symptoms=(
        "fork: retry: Resource temporarily unavailable",
        "RuntimeError: can't start new thread",
        "cgroup: fork rejected by pids controller",
    ),
    explanation="Each rank and each data loader worker has dozens of threads; above the limit, no new thread can"
    " start. The cgroup's limit covers everything that runs inside it, and applies in addition to the user's own"
    " (`ulimit -u`).",
    fixes="cat {group}/pids.max    # on {node}; raise the limit where it is set: Docker's --pids-limit, or TasksMax="
    " of the service or the user's slice",
)

BUSY_GPU = warning(
    code="host-busy-gpu",
    precedence=450,
    title="other processes use GPU memory",
    symptoms=(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "Process 1234 has 77.98 GiB memory in use.",
        "CUDA error: out of memory",
    ),
    explanation="A rank from an earlier run, a notebook or another user's job uses GPU memory that ranks need, so CUDA"
    " runs out of memory at once, or every step is slow. If nvidia-smi lists no process, the process is in a container"
    " or is a zombie; check on the host.",
    fixes={
        "kill": "ps -o user,pid,etime,args -p {listed}    # on {node}; whose processes are these?\n"
        "kill {pids:words}    # on {node}, if they are yours and not needed",
        "run": _STOP_RUN,
    },
    log_fix="nvidia-smi --query-compute-apps=pid,used_memory,name --format=csv    # on {node}; then terminate process"
    " {pid}",
    patterns=cause(
        # Alone, `Process N has` is the rank itself; next to `this process has` it is another process.
        r"CUDA out of memory\..*Process (?P<pid>\d+) has (?P<held>[\d.]+ [GM]iB) memory in use.*this process has"
        r"|CUDA out of memory\..*this process has"
        r".*Process (?P<pid2>\d+) has (?P<held2>[\d.]+ [GM]iB) memory in use"
    ),
)

CONNTRACK = warning(
    code="host-conntrack",
    title="the connection tracking table is nearly full",
    symptoms=("nf_conntrack: table full, dropping packet", "connections that time out now and then, on one node"),
    explanation="A firewall, Docker or Kubernetes makes the kernel track every connection. When the tracking table is"
    " full, the kernel drops new connections at random, and ranks time out.",
    fixes="sudo sysctl -w net.netfilter.nf_conntrack_max={most}    # on {node}; to keep it after a reboot, set it in"
    " /etc/sysctl.d too",
    leads_to=("network-flaky",),
)
