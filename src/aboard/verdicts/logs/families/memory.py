"""Memory and limits of the host: the kernel's killer, shared memory, open files, processes."""

from aboard.verdicts.logs.symptom import Symptom, cause

_LESS = "fewer data-loader workers, no copies of the data set per rank, or more memory for the job"

SYMPTOMS: tuple[Symptom, ...] = (
    cause(
        "host-oom-kills",
        r"(?:Memory cgroup out of memory|Out of memory): Kill(?:ed)? process (?P<pid>\d+)|oom-kill:constraint="
        r"|oom_reaper: reaped"
        r"|Detected \d+ oom[-_]kill event"
        r"|srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)[\d,-]*: Out Of Memory|OUT_OF_MEMORY|OOMKilled"
        r"|exceeded (?:job|step) memory limit",
        "The host's memory, or what the job may use of it, was out, and the kernel killed the biggest process.",
        "sudo dmesg -T | grep -i 'killed process'    # on {node}; which one, and how big it was",
        f"#SBATCH --mem=0    # all of the node's memory; or {_LESS}",
        weight=3,
        late=True,
    ),
    cause(
        "host-shm",
        r"srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)[\d,-]*: Bus error|insufficient shared memory"
        r"|worker.*killed by signal: Bus error|^Bus error|Bus error \(core|unable to write to file </torch_"
        r"|No space left on device.*/dev/shm",
        "Shared memory (/dev/shm) is too small or full, and data-loader workers need it; a container has 64 MB of it.",
        "df -h /dev/shm    # on {node}, inside of the container",
        "docker run --shm-size=16g …    # or --ipc=host; Apptainer: --bind /dev/shm",
        weight=3,
    ),
    cause(
        "host-oom-kills",
        r"DataLoader worker \(pid(?:\(s\))? (?P<pid>[\d, ]+)\) is killed by signal: Killed",
        f"A data-loader worker was killed, and that is what the kernel does when memory is out: {_LESS}.",
        "sudo dmesg -T | grep -i 'killed process'    # on {node}; was it out of memory?",
        weight=3,
    ),
    cause(
        "host-open-files",
        r"Too many open files|received \d+ items of ancdata|Errno 24\b",
        "A process has as many files and sockets open as it may.",
        "ulimit -n 65536    # on {node}, in the shell that ranks get; LimitNOFILE in slurmd's or sshd's unit",
        "torch.multiprocessing.set_sharing_strategy('file_system')    # needs fewer of them",
        weight=3,
    ),
    cause(
        "host-open-files",
        r"unable to open shared memory object </torch_",
        "Data-loader workers hand tensors over in shared memory, and each needs an open file: there are too many of"
        " them, or /dev/shm is full.",
        "ulimit -n 65536; df -h /dev/shm    # on {node}, in the shell that ranks get",
        "torch.multiprocessing.set_sharing_strategy('file_system')    # needs fewer open files",
    ),
    cause(
        "host-processes",
        r"can't start new thread|pthread_create failed|fork: (?:retry: )?Resource temporarily unavailable"
        r"|BlockingIOError: \[Errno 11\]|libgomp: Thread creation failed",
        "The user, or the job's control group, has as many processes and threads as it may.",
        "ulimit -u; cat /sys/fs/cgroup/pids.max    # on {node}, where ranks start",
        "export OMP_NUM_THREADS=1    # fewer threads in each rank",
        weight=3,
    ),
    cause(
        "host-memory",
        r"\[Errno 12\] Cannot allocate memory|std::bad_alloc|^MemoryError|DefaultCPUAllocator: (?:can't|not enough)"
        r"|unable to mmap \d+ bytes|cudaHostAlloc.*(?:failed|out of memory)|Failed to (?:pin|register) memory",
        "The host's memory was out, or an allocation was far too large.",
        "free -g; cat /sys/fs/cgroup/memory.max    # on {node}; what is there, and what may be used of it",
        weight=3,
    ),
)
