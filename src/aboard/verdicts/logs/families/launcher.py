"""What launchers say of the processes that they started: torchrun, DeepSpeed, Accelerate."""

from aboard.verdicts.logs.symptom import Symptom, cause, echo, end, info

_LOOK = "aboard why --log LOGS…    # with the output of that rank too: its own words are not in this log"

SYMPTOMS: tuple[Symptom, ...] = (
    end(
        "host-shm",
        r"exitcode: -7\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)|return code = -7\b"
        r"|Signal 7 \(SIGBUS\) received by PID (?P<pid2>\d+)",
        "Signal 7 is a bus error: a page of shared memory (/dev/shm) could not be had, since it is full or too small.",
        "df -h /dev/shm    # on {node}, inside of the container",
        "docker run --shm-size=16g …    # or --ipc=host; Apptainer: --bind /dev/shm",
        weight=3,
    ),
    end(
        "run-killed",
        r"failed \(exitcode: -9\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)"
        r"|Signal 9 \(SIGKILL\) received by PID (?P<pid2>\d+)"
        r"|exits with return code = -9|died with <Signals\.SIGKILL",
        "SIGKILL comes from the kernel when memory is out, from Slurm, or from somebody's hand.",
        "sudo dmesg -T | grep -i 'killed process'    # on {node}; was it out of memory?",
        weight=2,
    ),
    end(
        "run-killed",
        r"failed \(exitcode: -(?P<signal>\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)"
        r"|Signal (?P<signal2>\d+) \((?P<name>SIG\w+)\) received by PID (?P<pid2>\d+)"
        r"|exits with return code = -(?P<signal3>\d+)|Segmentation fault|Fatal Python error: (?P<error>\w+)"
        r"|died with <Signals\.(?P<name2>SIG\w+)",
        "A signal ended the rank: SIGSEGV and SIGABRT are bugs in native code, or libraries that don't fit each other.",
        "export PYTHONFAULTHANDLER=1    # then start again: the Python lines at which it died",
        "aboard check --only software    # what differs between nodes",
        weight=2,
    ),
    end(
        "run-exited",
        r"failed \(exitcode: (?P<code>\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)"
        r"|exits with return code = (?P<code2>\d+)"
        r"|exitcode +: (?P<code3>[1-9]\d*) "
        r"|CalledProcessError: Command .* returned non-zero exit status (?P<code4>\d+)|ChildFailedError",
        "The launcher tells that a rank ended, not why.",
        _LOOK,
    ),
    end(
        "log-told-to-stop",
        r"SignalException: Process \d+ got signal: (?P<signal>15|1|10|12)\b|Received (?P<signal2>\d+"
        r"|SIG\w+) death signal"
        r"|Main process received SIGTERM, exiting|Received SIGTERM: 15|Got termination signal",
        "Somebody told the launcher to stop: Slurm at its limit, a preemption, or an ssh session that was closed"
        " (signal 1 is SIGHUP).",
        "sacct -j JOBID --format=JobID,State,ExitCode,End    # under Slurm: who ended it",
        "nohup torchrun … &    # over ssh: outlives the session; or tmux",
        weight=2,
    ),
    end(
        "log-interrupted",
        r"^KeyboardInterrupt|got signal: 2\b|Main process received SIGINT",
        "Somebody pressed Ctrl-C.",
        "",
        weight=1,
    ),
    echo(r"Sending process \d+ closing signal|Unable to shutdown process|Killing subprocess \d+"),
    cause(
        "log-deepspeed-batch",
        r"Check batch related parameters\. train_batch_size is not equal to",
        "train_batch_size must be micro batch × accumulation × ranks: it was written for another number of ranks.",
        '"train_batch_size": "auto"    # in ds_config.json; or leave one of the three out',
        weight=3,
    ),
    cause(
        "log-loss-scale",
        r"Current loss scale already at minimum",
        "Every step overflowed in fp16 until the loss scale was at its minimum: the model diverged, or wants bf16.",
        '"bf16": {{"enabled": true}}    # in ds_config.json, in place of fp16, where the GPUs can',
        weight=3,
    ),
    cause(
        "log-hostfile",
        r"Hostfile (?:contains|is empty)|not found in hostfile|No slot '\d+' specified on host"
        r"|Num nodes is >1 but no extra nodes"
        r"|Unable to proceed, unable to parse",
        "DeepSpeed can't use its hostfile.",
        "cat hostfile    # one `NAME slots=N` a line, each name once",
        weight=3,
    ),
    info(
        "log-local-only",
        r"Unable to find hostfile, will proceed with training with local resources only",
        "DeepSpeed trains on this machine alone: its hostfile is not where it looks (/job/hostfile).",
        "deepspeed --hostfile=./hostfile …    # if more than one node was meant",
    ),
    cause(
        "log-extension",
        r"Error building extension '(?P<name>\w+)'|ninja: build stopped|Ninja is required to load C\+\+ extensions",
        "A native extension could not be compiled on this node: no compiler, another CUDA, or a cache that two nodes"
        " write to.",
        "rm -rf ~/.cache/torch_extensions; nvcc --version; c++ --version    # on {node}; then start again",
        weight=2,
    ),
    cause(
        "log-local-rank",
        r"unrecognized arguments: --local[-_]rank",
        "The launcher passes --local-rank (with a dash since torch 2.0) to a script that doesn't know it.",
        "torchrun …    # passes none; the script reads LOCAL_RANK from the environment",
        weight=3,
    ),
    cause(
        "log-arguments",
        r"(?:(?P<script>[\w./-]+\.py): )?error: (?:unrecognized arguments: (?P<arguments>.+)"
        r"|the following arguments are required: (?P<missing>.+))",
        "The script was given arguments that it doesn't take, or lacks some.",
        "python {script} --help",
        weight=2,
    ),
)
