"""What a host is, what it lets ranks have, and what earlier runs left on it."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import Advice, Command
from aboard.diagnoses.messages import cause, end

_RESTART_SSH = "sudo systemctl restart ssh    # on {node}; if sshd itself was started with the low limit"
_MEMORY_MAX = (
    "systemctl show user-$(id -u).slice -p MemoryMax    # on {node}; in Slurm ask for more --mem, in Docker too\n"
    "sudo systemctl set-property user-$(id -u).slice MemoryMax=infinity    # on {node}; if that is the limit"
)

CLOCK = Diagnosis(
    code="host-clock",
    title="a node's clock is off",
    symptoms=(
        "WORLD_SIZE=1 on one node, with exit code 0, while the others fail",
        "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
        "slurm: error: Munge decode failed: Expired credential",
    ),
    explanation="torchrun's rendezvous compares time stamps of different machines, and takes a peer whose clock is 15 s"
    " off for dead: one node then trains alone. Munge refuses credentials, certificates look not yet valid, and logs of"
    " several nodes can't be put in order. The offset is measured over the wire; if all nodes have the same one, this"
    " machine's clock is wrong.",
    fixes="sudo systemctl restart chrony || sudo systemctl restart systemd-timesyncd    # on {node}",
    log_fix="chronyc tracking    # on {node}; sudo systemctl restart chronyd; sudo chronyc makestep sets it at once",
    patterns=cause(
        r"[Mm]unge decode failed: (?:Expired|Rewound) credential|Expired credential|Rewound credential",
        "The clocks of two nodes are more than some minutes apart, so that Slurm's keys are too old.",
    ),
)

LEFTOVERS = Diagnosis(
    code="host-leftovers",
    title="processes of an earlier run are still there",
    severity=Severity.WARN,
    symptoms=(
        "CUDA out of memory, at once, on one node",
        "The server socket has failed to listen on any local network address.",
        "code: -98, name: EADDRINUSE, message: address already in use",
    ),
    explanation="Every rank carries its run's id (ABOARD_RUN_ID) in its environment, and a keeper ends all of them when"
    " the run is over. A keeper and its guard that were both killed, by an out-of-memory killer or by hand, can't. What"
    " carries the id of a run that has no keeper any more is a leftover.",
    fixes="aboard check --fix    # here; the same check as before: ends what carries the run's id on {node}",
    leads_to=("network-port-taken", "host-busy-gpu"),
)

LEFTOVER_FILES = Diagnosis(
    code="host-leftover-files",
    title="a dead run's directory lies in /tmp",
    severity=Severity.INFO,
    symptoms=("a directory of a run that is over, as aboard-1000/RUN",),
    explanation="A keeper has a private directory with the last output of its ranks, and removes it at its end. One"
    " that was killed leaves it; copy what you need of that output first.",
    fixes="aboard check --fix    # here; the same check as before: removes them on {node}",
)

OTHER_RANKS = Diagnosis(
    code="host-other-ranks",
    title="ranks of another launcher run there",
    severity=Severity.WARN,
    symptoms=("EADDRINUSE", "CUDA out of memory", "python processes that survive `pkill deepspeed`"),
    explanation="torchrun, DeepSpeed and mpirun don't always end what they started: when the launcher is killed or its"
    " ssh is cut, ranks on the other nodes go on. They are known by RANK and MASTER_ADDR in their environment. Those"
    " whose launcher is gone are a warning; those that have one may be a run of yours that is going well.",
    fixes="ps -o pid,etime,args -p {listed}    # on {node}; are they still wanted?\n"
    "kill {pids:words}    # on {node}; if not",
    leads_to=("network-port-taken", "host-busy-gpu"),
)

LEFTOVERS_ENDED = Diagnosis(
    code="host-leftovers-ended",
    title="leftovers were ended",
    severity=Severity.INFO,
    symptoms=("ended 3 processes of dead runs",),
    explanation="`aboard check --fix` was given, and ended the processes that carry the id of a run without a keeper.",
    remedy="Nothing is left to do.",
)

OWN_NAME = Diagnosis(
    code="host-own-name",
    title="a node's own name is a loopback address",
    severity=Severity.WARN,
    symptoms=(
        "Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
        "connect [127.0.1.1]:41896: Connection refused",
        "Unable to resolve hostname to a (local) address. Using the loopback address as fallback.",
    ),
    explanation="Debian's and Ubuntu's installers write `127.0.1.1 HOSTNAME` into /etc/hosts. Gloo, and every program"
    " that asks for the address of its own host name, then tells its peers 127.0.1.1, and each of them dials itself.",
    fixes="sudo sed -i {edit} /etc/hosts    # on {node}\necho {line} | sudo tee -a /etc/hosts    # on {node}",
    log_fix="getent hosts $(hostname)    # on {node}; 127.0.1.1 must not be there\n"
    "export GLOO_SOCKET_IFNAME=eth0    # the interface that peers reach, in place of the name",
    patterns=cause(
        r"connect \[(?P<peer2>127\.[\d.]+|::1)\]:\d+: Connection refused"
        r"|connectFullMesh failed.*remote=\[(?P<peer>127\.[\d.]+|::1)\]|(?:Connection refused"
        r"|timed out).*remote=\[127\.",
        "A node's own name is a loopback address in its /etc/hosts, and it tells its peers to connect there.",
    ),
)

OPEN_FILES = Diagnosis(
    code="host-open-files",
    title="a rank may open too few files",
    severity=Severity.WARN,
    symptoms=("OSError: [Errno 24] Too many open files", "RuntimeError: received 0 items of ancdata"),
    explanation="A process inherits its limits from sshd, slurmd or the container (`--ulimit nofile=1048576`), and they"
    " are often 1024 open files where ranks need thousands: data loaders pass each tensor as an open file, and each"
    " peer is a socket. What `ulimit -n` says in your terminal may be another figure than the one that ranks get.",
    fixes={
        "setup": Advice("setup: {lines}    # in aboard.yaml, for {node}"),
        "raise": Command(
            "echo '* - nofile 1048576' | sudo tee /etc/security/limits.d/90-nofile.conf    # on {node};"
            " for new logins\n" + _RESTART_SSH
        ),
        "shared": Command(
            "ulimit -n 65536; df -h /dev/shm    # on {node}, in the shell that ranks get\n"
            "torch.multiprocessing.set_sharing_strategy('file_system')    # needs fewer open files"
        ),
    },
    log_fix="ulimit -n 65536    # on {node}, in the shell that ranks get; LimitNOFILE in slurmd's or sshd's unit\n"
    "torch.multiprocessing.set_sharing_strategy('file_system')    # needs fewer of them",
    patterns=(
        cause(
            r"Too many open files|received \d+ items of ancdata|Errno 24\b",
            "A process has as many files and sockets open as it may.",
        ),
        cause(
            r"unable to open shared memory object </torch_",
            "Data-loader workers hand tensors over in shared memory, and each needs an open file: there are too many"
            " of them, or /dev/shm is full.",
            fix="shared",
            weight=2,
        ),
    ),
)

PROCESSES = Diagnosis(
    code="host-processes",
    title="the user may start too few processes",
    severity=Severity.WARN,
    symptoms=(
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 12 of 64",
        "RuntimeError: can't start new thread",
    ),
    explanation="The limit counts all processes and threads of the user on that machine, those of other runs too. Each"
    " rank starts a thread for each core for its math, and more for communication and data.",
    fixes={
        "setup": Advice("setup: {lines}    # in aboard.yaml, for {node}"),
        "raise": Command(
            "echo '* - nproc unlimited' | sudo tee /etc/security/limits.d/90-nproc.conf    # on {node};"
            " for new logins\n" + _RESTART_SSH
        ),
    },
    log_fix="ulimit -u; cat /sys/fs/cgroup/pids.max    # on {node}, where ranks start\n"
    "export OMP_NUM_THREADS=1    # fewer threads in each rank",
    patterns=cause(
        r"can't start new thread|pthread_create failed|fork: (?:retry: )?Resource temporarily unavailable"
        r"|BlockingIOError: \[Errno 11\]|libgomp: Thread creation failed",
        "The user, or the job's control group, has as many processes and threads as it may.",
    ),
)

_SMALL_SHM = "Shared memory (/dev/shm) is too small or full; in a container it has 64 MB by default."
SHM = Diagnosis(
    code="host-shm",
    title="shared memory (/dev/shm) is too small, or full",
    severity=Severity.WARN,
    symptoms=(
        "DataLoader worker (pid 1234) is killed by signal: Bus error.",
        "It is possible that dataloader's workers are out of shared memory.",
        "Error: failed to extend /dev/shm/nccl-AbCdEf to 9637892 bytes",
        "OSError: [Errno 28] No space left on device: '/dev/shm/...'",
    ),
    explanation="Data loader workers pass tensors to their rank through files in /dev/shm, and NCCL connects ranks of"
    " one node through it. Docker gives a container 64 MiB unless told otherwise; in Kubernetes, mount an emptyDir with"
    " `medium: Memory` there. Runs that were killed hard leave their segments there until the machine is rebooted.",
    fixes={
        "small": Command(
            "sudo mount -o remount,size=50% /dev/shm    # on {node}; and in /etc/fstab, for good\n"
            "# if {node} is a container, start it with --shm-size=32g or --ipc=host instead"
        ),
        "full": Command(
            "ls -lS /dev/shm | head    # on {node}; whose are they?\n"
            "find /dev/shm -user $USER -name 'nccl-*' -delete    # on {node}; if no run of yours is there: what dead"
            " runs left"
        ),
    },
    log_fix="df -h /dev/shm    # on {node}, inside of the container\n"
    "docker run --shm-size=16g …    # or --ipc=host; Apptainer: --bind /dev/shm",
    patterns=(
        cause(
            r"srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)[\d,-]*: Bus error|insufficient shared memory"
            r"|worker.*killed by signal: Bus error|^Bus error|Bus error \(core|unable to write to file </torch_"
            r"|No space left on device.*/dev/shm",
            _SMALL_SHM,
        ),
        cause(
            r"[Ee]rror: failed to extend (?P<file>/dev/shm/\S+) to (?P<size>\d+) bytes|Error while (?:creating"
            r"|attaching to) shared memory",
            _SMALL_SHM,
        ),
        end(
            r"exitcode: -7\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)|return code = -7\b"
            r"|Signal 7 \(SIGBUS\) received by PID (?P<pid2>\d+)",
            "Signal 7 is a bus error: a page of shared memory (/dev/shm) could not be had, since it is full or too"
            " small.",
            weight=3,
        ),
    ),
)

MEMORY = Diagnosis(
    code="host-memory",
    title="there is hardly any free memory",
    severity=Severity.WARN,
    symptoms=(
        "exitcode: -9",
        "Out of memory: Killed process 1234 (python3)",
        "RuntimeError: [enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory",
    ),
    explanation="Other processes, often those of an earlier run, or files in /dev/shm hold the memory. Each rank loads"
    " its part of the model through the node's memory, so the first to do so is killed.",
    fixes="ps -eo user,pid,rss,args --sort=-rss | head    # on {node}; who holds it?",
    log_fix="free -g; cat /sys/fs/cgroup/memory.max    # on {node}; what is there, and what may be used of it",
    patterns=cause(
        r"\[Errno 12\] Cannot allocate memory|std::bad_alloc|^MemoryError|DefaultCPUAllocator: (?:can't|not enough)"
        r"|unable to mmap \d+ bytes|cudaHostAlloc.*(?:failed|out of memory)|Failed to (?:pin|register) memory",
        "The host's memory was out, or an allocation was far too large.",
    ),
)

MEMORY_LIMIT = Diagnosis(
    code="host-memory-limit",
    title="a control group gives ranks far less memory than the machine has",
    severity=Severity.WARN,
    symptoms=("exitcode: -9", "Memory cgroup out of memory: Killed process", "slurmstepd: error: Detected 1 oom_kill"),
    explanation="A container, a Slurm job or a systemd slice limits the memory of all that runs inside it. Data loader"
    " workers, pinned buffers and the page cache of mapped files count as well.",
    fixes=Command(_MEMORY_MAX),
    leads_to=("host-oom-kills",),
)

OOM_KILLS = Diagnosis(
    code="host-oom-kills",
    title="processes were killed within this memory limit",
    severity=Severity.WARN,
    symptoms=("exitcode: -9", "oom_kill 3 in memory.events"),
    explanation="The kernel counts, for each control group, the processes that it killed because the group had used up"
    " its memory. The count is that of the group in which ranks will run, since it was made.",
    fixes={
        "": Command(_MEMORY_MAX + "\n# or fewer data loader workers, a smaller batch, no copy per rank"),
        "worker": Command("sudo dmesg -T | grep -i 'killed process'    # on {node}; was it out of memory?"),
    },
    log_fix="sudo dmesg -T | grep -i 'killed process'    # on {node}; which one, and how big it was\n"
    "#SBATCH --mem=0    # all of the node's memory; or fewer data-loader workers, no copies of the data set per rank,"
    " or more memory for the job",
    patterns=(
        cause(
            r"(?:Memory cgroup out of memory|Out of memory): Kill(?:ed)? process (?P<pid>\d+)|oom-kill:constraint="
            r"|oom_reaper: reaped|Detected \d+ oom[-_]kill event"
            r"|srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)[\d,-]*: Out Of Memory|OUT_OF_MEMORY|OOMKilled"
            r"|exceeded (?:job|step) memory limit",
            "The host's memory, or what the job may use of it, was out, and the kernel killed the biggest process.",
            late=True,
        ),
        cause(
            r"DataLoader worker \(pid(?:\(s\))? (?P<pid>[\d, ]+)\) is killed by signal: Killed",
            "A data-loader worker was killed, and that is what the kernel does when memory is out: fewer data-loader"
            " workers, no copies of the data set per rank, or more memory for the job.",
            fix="worker",
        ),
    ),
)

AFFINITY = Diagnosis(
    code="host-affinity",
    title="ranks may use only a few of the machine's cores",
    severity=Severity.WARN,
    symptoms=("all ranks slow, one core at 100 %", "Our suggested max number of worker in current system is 1"),
    explanation="A process inherits the cores that it may use (`grep Cpus_allowed_list /proc/self/status`) from whoever"
    " started it: sshd, a Slurm step, a container. Slurm gives one core for each task unless it is told more; a service"
    " file or an outer `taskset` narrows sshd and all that it starts. Ranks, data loaders and NCCL's or Gloo's threads"
    " then share that core.",
    fixes="sudo systemctl restart ssh    # on {node}; what it starts has its cores. If that doesn't help: CPUAffinity="
    " of ssh.service, a cpuset, or --cpus-per-task of the Slurm job",
)

CPU_QUOTA = Diagnosis(
    code="host-cpu-quota",
    title="a control group gives ranks the time of a few cores only",
    severity=Severity.WARN,
    symptoms=("all ranks slow although most cores are idle", "nr_throttled grows in cpu.stat"),
    explanation="A container or a service can be given the time of, say, two cores. Its processes still see and use all"
    " cores, and are stopped together as soon as the share of each tenth of a second is used up, so data loaders and"
    " communication stall in fits.",
    fixes="cat {group}/cpu.max {group}/cpu.cfs_quota_us    # on {node}; raise it where it is set: --cpus of Docker,"
    " limits.cpu of Kubernetes, CPUQuota= of the service",
)

TASKS = Diagnosis(
    code="host-tasks",
    title="a control group allows few processes",
    severity=Severity.WARN,
    symptoms=(
        "fork: retry: Resource temporarily unavailable",
        "RuntimeError: can't start new thread",
        "cgroup: fork rejected by pids controller",
    ),
    explanation="A control group counts the processes and threads of all that runs inside it, beside the user's own"
    " limit (`ulimit -u`). Containers and systemd's services often have such a limit.",
    fixes="cat {group}/pids.max    # on {node}; raise it where it is set: --pids-limit of Docker, TasksMax= of the"
    " service or the user's slice",
)

BUSY_GPU = Diagnosis(
    code="host-busy-gpu",
    title="other processes hold GPU memory",
    severity=Severity.WARN,
    symptoms=(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "Process 1234 has 77.98 GiB memory in use.",
        "CUDA error: out of memory",
    ),
    explanation="A rank of an earlier run that was not ended, a notebook, or another user's job is on the GPU. Memory"
    " that it holds is not given back until it ends. If nvidia-smi lists no process, it is in a container or a zombie:"
    " look on the host.",
    fixes="ps -o user,pid,etime,args -p {listed}    # on {node}; whose are they?\n"
    "kill {pids:words}    # on {node}, if they are yours and not needed",
    log_fix="nvidia-smi --query-compute-apps=pid,used_memory,name --format=csv    # on {node}; then end process {pid}",
    patterns=cause(
        # Alone, `Process N has` is the rank itself; beside `this process has` it is somebody else.
        r"CUDA out of memory\..*Process (?P<pid>\d+) has (?P<held>[\d.]+ [GM]iB) memory in use.*this process has"
        r"|CUDA out of memory\..*this process has"
        r".*Process (?P<pid2>\d+) has (?P<held2>[\d.]+ [GM]iB) memory in use"
    ),
)

CONNTRACK = Diagnosis(
    code="host-conntrack",
    title="the table of tracked connections is nearly full",
    severity=Severity.WARN,
    symptoms=("nf_conntrack: table full, dropping packet", "connections that time out now and then, on one node"),
    explanation="A firewall, Docker or Kubernetes makes the kernel remember every connection. When its table is full,"
    " the first packet of a new connection is dropped, which looks like a flaky network.",
    fixes="sudo sysctl -w net.netfilter.nf_conntrack_max={most}    # on {node}; and in /etc/sysctl.d, for good",
    leads_to=("network-flaky",),
)
