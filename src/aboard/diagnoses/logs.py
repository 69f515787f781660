"""What only a log can tell: messages of programs that no other check or rule has a name for."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import Command

_ALL_LOGS = "aboard why --log LOGS…    # with the logs of all nodes and ranks: the one that died first is named"

ARGUMENTS = Diagnosis(
    code="log-arguments",
    title="the script was given arguments that it doesn't take",
    symptoms=("error: unrecognized arguments: --foo",),
    explanation="The script was given arguments that it doesn't take, or lacks some.",
    remedy="`python SCRIPT --help`.",
)
CANCELLED = Diagnosis(
    code="log-cancelled",
    title="the job was cancelled",
    symptoms=("slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-03-03T12:00:19 ***",),
    explanation="Somebody, or a step that failed before, cancelled it.",
    remedy="`sacct -j JOB --format=JobID,State,ExitCode,End,NodeList`: which step ended first, and how.",
)
CHECKPOINT_SHAPE = Diagnosis(
    code="log-checkpoint-shape",
    title="the checkpoint is of another model, or of another number of ranks",
    symptoms=(
        "size mismatch for lm_head.weight: copying a param with shape",
        "Missing key(s) in state_dict",
    ),
    explanation="The checkpoint is of another model, or of another number of ranks than this loader can spread.",
    remedy="`grep -nE 'vocab_size|hidden_size|num_hidden_layers' config.json`: of the model and of the checkpoint.",
)
CHECKPOINT_TORN = Diagnosis(
    code="log-checkpoint-torn",
    title="a checkpoint was not written to its end",
    symptoms=(
        "PytorchStreamReader failed reading zip archive: failed finding central directory",
        "Error while deserializing header: MetadataIncompleteBuffer",
    ),
    explanation="The checkpoint was not written to its end: a full disk, or a run that was killed meanwhile.",
    remedy="`ls -l CHECKPOINT`: is a file smaller than its peers? then resume from the one before it.",
)
CLIENTS_MISSING = Diagnosis(
    code="log-clients-missing",
    title="not all ranks came to the rendezvous",
    symptoms=(
        "Timed out after 301 seconds waiting for clients. 6/8 clients joined.",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
    ),
    explanation="CAME of WORLD ranks came. The others never started, can't reach rank 0, or were given another world"
    " size; torch doesn't say which.",
    remedy="`grep -L 'Init\\|loss\\|rank' LOGS…`: which node's log is empty, or ends early? the reason is there. `echo"
    " $RANK $WORLD_SIZE $MASTER_ADDR`: on each node, where ranks start: all ranks once, one world size.",
)
COLLECTIVE_TIMEOUT = Diagnosis(
    code="log-collective-timeout",
    title="a collective came to no end",
    symptoms=("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=78, OpType=BROADCAST, NumelIn=…",),
    explanation="The collective was not done within its time-out: a rank never came to it, or the network carried"
    " nothing.",
    remedy="`export TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1`: then start again: the flight"
    " recorder keeps who was where. `py-spy dump --pid PID`: of each rank, while it hangs: who is outside of the"
    " collective?",
)
CONTAINER = Diagnosis(
    code="log-container",
    title="a container could not be started",
    symptoms=("slurmstepd: error: pyxis: container start failed",),
    explanation="The container could not be started on this node.",
    remedy="`ls -l IMAGE; df -h /tmp`: on NODE; is the image there, and room to unpack it?",
)
CONTAINER_GPU = Diagnosis(
    code="log-container-gpu",
    title="a container gets no GPU",
    symptoms=(
        "Could not find any nv files on this host!",
        "nvidia-container-cli: initialization error",
    ),
    explanation="The container gets no GPU: the host has no driver, or the container was started without it.",
    remedy="`nvidia-smi`: on NODE, outside of the container: is there a driver at all? `apptainer exec --nv …`:"
    " Docker: --gpus all, with nvidia-container-toolkit installed.",
)
CPU_BINDING = Diagnosis(
    code="log-cpu-binding",
    title="ranks are bound to cores that the job hasn't got",
    symptoms=("CPU binding outside of job step allocation",),
    explanation="The cores that ranks were to be bound to are not those of the job.",
    remedy="`srun --cpu-bind=none …`: or ask for the cores: #SBATCH --cpus-per-task=N, srun --cpus-per-task=N.",
)
CUDA_ERROR = Diagnosis(
    code="log-cuda-error",
    title="a call to the GPU failed",
    symptoms=(
        "CUDA error: unknown error",
        "CUBLAS_STATUS_EXECUTION_FAILED",
    ),
    explanation="A call to the GPU failed. CUDA tells it late: the line in the traceback is often not the one that did"
    " it.",
    remedy="`export CUDA_LAUNCH_BLOCKING=1`: then start again: the traceback shows the line. `sudo dmesg -T | grep -i"
    " xid`: on NODE; did the GPU fail?",
)
DEEPSPEED_BATCH = Diagnosis(
    code="log-deepspeed-batch",
    title="DeepSpeed's batch sizes don't fit the number of ranks",
    symptoms=("Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu",),
    explanation="train_batch_size must be micro batch × accumulation × ranks: it was written for another number of"
    " ranks.",
    remedy='`"train_batch_size": "auto"`: in ds_config.json; or leave one of the three out.',
)
DEVICE_ASSERT = Diagnosis(
    code="log-device-assert",
    title="a kernel met a value that can't be",
    symptoms=("CUDA error: device-side assert triggered",),
    explanation="A kernel found a value that can't be: mostly a token id or a label past the end of a table.",
    remedy="`export CUDA_LAUNCH_BLOCKING=1`: then start again: the traceback shows the line. `assert max(input_ids) <"
    " model.config.vocab_size`: the usual reason.",
)
EXTENSION = Diagnosis(
    code="log-extension",
    title="a native extension could not be built",
    symptoms=("Error building extension 'fused_adam'",),
    explanation="A native extension could not be compiled on this node: no compiler, another CUDA, or a cache that two"
    " nodes write to.",
    remedy="`rm -rf ~/.cache/torch_extensions; nvcc --version; c++ --version`: on NODE; then start again.",
)
GPU_MEMORY = Diagnosis(
    code="log-gpu-memory",
    title="the GPU's memory is too small",
    symptoms=("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",),
    explanation="The GPU had no room left for NCCL's buffers.",
    remedy="`nvidia-smi`: on NODE; does something else use the GPU? else a smaller batch.",
)
HOSTFILE = Diagnosis(
    code="log-hostfile",
    title="DeepSpeed can't use its hostfile",
    symptoms=("Hostfile is empty or not formatted correctly",),
    explanation="DeepSpeed can't use its hostfile.",
    remedy="`cat hostfile`: one `NAME slots=N` a line, each name once.",
)
HUB = Diagnosis(
    code="log-hub",
    title="the hub wants a login",
    symptoms=(
        "GatedRepoError: 401 Client Error",
        "Cannot access gated repo for url",
    ),
    explanation="The hub wants a login with access to this model, and this node has none.",
    remedy="`hf auth login`: on NODE, or HF_TOKEN in the environment of ranks; ask for access on the model's page.",
)
HUB_UNREACHABLE = Diagnosis(
    code="log-hub-unreachable",
    title="a node can't reach the hub",
    symptoms=(
        "We couldn't connect to 'https://huggingface.co' to load the files",
        "LocalEntryNotFoundError",
    ),
    explanation="This node can't reach the hub, and has no copy of the files: compute nodes are often cut off.",
    remedy="`hf download MODEL --local-dir /shared/MODEL`: where there is a way out; then give that path. `export"
    " HF_HUB_OFFLINE=1`: uses only what is in the cache.",
)
ILLEGAL_ACCESS = Diagnosis(
    code="log-illegal-access",
    title="a kernel touched memory that isn't its own",
    symptoms=("CUDA error: an illegal memory access was encountered",),
    explanation="A kernel on the GPU touched memory that isn't its own: a bug in a kernel or an index, rarely the GPU.",
    remedy="`export CUDA_LAUNCH_BLOCKING=1`: then start again: the traceback shows the line that did it. `sudo dmesg"
    " -T | grep -i xid`: on NODE; another Xid beside 13 and 31 is the hardware.",
)
IMPORT = Diagnosis(
    code="log-import",
    title="a package is another version than the code wants",
    symptoms=("ImportError: cannot import name",),
    explanation="A package is another version than the code was written for.",
    remedy="`python -m pip list | grep -iE 'torch|transformers|deepspeed|accelerate|peft'`: on each node.",
)
INTERRUPTED = Diagnosis(
    code="log-interrupted",
    title="somebody pressed Ctrl-C",
    symptoms=(
        "KeyboardInterrupt",
        "got signal: 2",
    ),
    explanation="Somebody pressed Ctrl-C.",
    remedy="Nothing is to be mended: it was asked to end.",
)
IO_ERROR = Diagnosis(
    code="log-io-error",
    title="a disk fails",
    symptoms=(
        "OSError: [Errno 5] Input/output error",
        "blk_update_request: I/O error",
    ),
    explanation="A disk of this node fails.",
    remedy="`sudo dmesg -T | grep -iE 'i/o error|nvme|ext4|xfs'; sudo smartctl -a /dev/DISK`: on NODE.",
)
LIBRARY = Diagnosis(
    code="log-library",
    title="a native library is missing, or of another version",
    symptoms=(
        "ImportError: libcudart.so.11.0: cannot open shared object file",
        "undefined symbol: ncclCommRegister",
    ),
    explanation="A native library is missing on this node, or is another version than what was built against.",
    remedy="`python -c 'import torch'; ldd FILE.so | grep 'not found'`: on NODE. `echo $LD_LIBRARY_PATH`: there: what"
    " comes first in it is loaded.",
)
LOADER = Diagnosis(
    code="log-loader",
    title="a data-loader worker died",
    symptoms=("DataLoader worker (pid(s) 4711) exited unexpectedly",),
    explanation="A data-loader worker died; its own exception stands above, if it had one.",
    remedy="`num_workers=0`: in the DataLoader: the exception then comes from the rank itself. `df -h /dev/shm; free"
    " -g`: on NODE; shared memory and memory are the usual reasons.",
)
LOCAL_ONLY = Diagnosis(
    code="log-local-only",
    title="DeepSpeed trains on one machine only",
    severity=Severity.WARN,
    symptoms=("Unable to find hostfile, will proceed with training with local resources only.",),
    explanation="DeepSpeed trains on this machine alone: its hostfile is not where it looks (/job/hostfile).",
    remedy="`deepspeed --hostfile=./hostfile …`: if more than one node was meant.",
)
LOCAL_RANK = Diagnosis(
    code="log-local-rank",
    title="the script doesn't know --local-rank",
    symptoms=("error: unrecognized arguments: --local-rank=0",),
    explanation="The launcher passes --local-rank (with a dash since torch 2.0) to a script that doesn't know it.",
    remedy="`torchrun …`: passes none; the script reads LOCAL_RANK from the environment.",
)
LOSS_SCALE = Diagnosis(
    code="log-loss-scale",
    title="training in fp16 diverged",
    symptoms=("Current loss scale already at minimum - cannot decrease scale anymore",),
    explanation="Every step overflowed in fp16 until the loss scale was at its minimum: the model diverged, or wants"
    " bf16.",
    remedy='`"bf16": {"enabled": true}`: in ds_config.json, in place of fp16, where the GPUs can.',
)
MESH = Diagnosis(
    code="log-mesh",
    title="Gloo could not connect all ranks",
    symptoms=(
        "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
    ),
    explanation="A rank could not connect to a peer, and Gloo doesn't say which: a node's own name is a loopback"
    " address, the wrong interface was taken, or a firewall is between.",
    remedy="`getent hosts $(hostname)`: on each node; 127.0.1.1 must not be there. `export GLOO_SOCKET_IFNAME=eth0`:"
    " the interface that peers reach, on all nodes. `aboard check --only network`: tries every pair of nodes.",
)
MODEL_DIFFERS = Diagnosis(
    code="log-model-differs",
    title="ranks built different models",
    symptoms=("DDP expects same model across all ranks, but Rank 0 has",),
    explanation="Ranks built different models: another config, vocabulary or version on one node.",
    remedy="`sha256sum CONFIG; python -m pip list | grep -iE 'torch|transformers'`: on each node.",
)
MODEL_MISSING = Diagnosis(
    code="log-model-missing",
    title="a model's path is not there",
    symptoms=("is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",),
    explanation="The model's path is not there on this node, or its name is wrong: transformers takes a missing path"
    " for a name.",
    remedy="`ls PATH`: on NODE; is the directory there, with config.json?",
)
MODULE_MISSING = Diagnosis(
    code="log-module-missing",
    title="a rank's Python has no such module",
    symptoms=("ModuleNotFoundError: No module named 'flash_attn'",),
    explanation="The Python that this rank got has no such module: another environment than on the head.",
    remedy="`python3 -m pip install MODULE`: on NODE; or start ranks with the absolute path of the right python.",
)
NAN = Diagnosis(
    code="log-nan",
    title="the loss is no number any more",
    severity=Severity.WARN,
    symptoms=("{'loss': nan, 'grad_norm': nan}",),
    explanation="The loss is no number any more: a learning rate too high, fp16 that overflows, a broken row, or a GPU"
    " that computes wrongly.",
    remedy="`grep -n -m1 -i 'nan' LOG`: the first step at which it is; go back to a checkpoint before it. `export"
    " TORCH_NCCL_NAN_CHECK=1`: then start again: the rank that brings it in is named.",
)
NCCL_ALGORITHM = Diagnosis(
    code="log-nccl-algorithm",
    title="NCCL is left no algorithm",
    symptoms=("NCCL WARN Error : no algorithm/protocol available",),
    explanation="NCCL_ALGO or NCCL_PROTO leave NCCL no way to do a collective.",
    remedy="`unset NCCL_ALGO NCCL_PROTO`: where ranks start; NCCL chooses by itself.",
)
NCCL_CUDA = Diagnosis(
    code="log-nccl-cuda",
    title="a CUDA call failed inside of NCCL",
    symptoms=("ncclUnhandledCudaError: Call to CUDA function failed.",),
    explanation="A CUDA call failed inside of NCCL.",
    remedy="`sudo dmesg -T | grep -i xid`: on NODE; did a GPU fail? `export NCCL_DEBUG=INFO`: then start again, and:"
    " aboard why --log LOG.",
)
NCCL_INTERNAL = Diagnosis(
    code="log-nccl-internal",
    title="NCCL met what it did not expect",
    symptoms=("ncclInternalError: Internal check failed.",),
    explanation="NCCL met what it did not expect: mostly libraries that don't fit each other, or a broken topology.",
    remedy="`export NCCL_DEBUG=INFO`: then start again, and: aboard why --log LOG. `aboard check --only software`:"
    " what differs between nodes.",
)
NCCL_INVALID = Diagnosis(
    code="log-nccl-invalid",
    title="NCCL was called in a way that it can't obey",
    symptoms=("ncclInvalidUsage: This usually reflects invalid usage",),
    explanation="NCCL was called in a way that it can't obey; its own warning above says which.",
    remedy="`export NCCL_DEBUG=WARN`: then start again: the line before this one says why.",
)
NCCL_SYSTEM = Diagnosis(
    code="log-nccl-system",
    title="a system call failed inside of NCCL",
    symptoms=("unhandled system error (run with NCCL_DEBUG=INFO for details)",),
    explanation="A system call failed inside of NCCL, and the log doesn't say which: with NCCL_DEBUG=INFO it would.",
    remedy="`export NCCL_DEBUG=INFO`: then start again, and: aboard why --log LOG. `aboard check --only network`:"
    " interfaces and firewalls are the usual reasons.",
)
NVLS = Diagnosis(
    code="log-nvls",
    title="NVLink SHARP can't be set up",
    symptoms=("Failed to bind NVLink SHARP (NVLS) Multicast memory of size",),
    explanation="The switches between the GPUs (NVSwitch) can't set up multicast: the fabric manager isn't well, or"
    " its memory is used up by another container.",
    remedy="`export NCCL_NVLS_ENABLE=0`: goes on without it. `sudo systemctl restart nvidia-fabricmanager`: on NODE,"
    " when no GPU is in use.",
)
PERMISSION = Diagnosis(
    code="log-permission",
    title="a path may not be used on a node",
    symptoms=("PermissionError: [Errno 13] Permission denied:",),
    explanation="The user that ranks run as may not use this path on this node.",
    remedy="`ls -ld PATH; id`: on NODE; user and group numbers must be the same on all nodes.",
)
PREEMPTED = Diagnosis(
    code="log-preempted",
    title="a job of higher priority took the nodes",
    symptoms=("CANCELLED AT 2026-06-06T06:06:06 DUE TO PREEMPTION",),
    explanation="A job of higher priority took the nodes.",
    remedy="`#SBATCH --requeue`: starts it again by itself; resume from the last checkpoint.",
)
PRIVATE_ADDRESS = Diagnosis(
    code="log-private-address",
    title="a peer told an address that only it has",
    symptoms=(
        "socketStartConnect: Connect to 172.17.0.2<43369> failed : Connection refused",
        "Connect to 169.254.20.10<43369> failed : Software caused connection abort",
    ),
    explanation="The peer told an address that only it has: link-local, or of a container's or virtual machine's own"
    " bridge. NCCL took the wrong interface there.",
    remedy="`ip -br addr`: on each node; which interface has the address that the others reach? `export"
    " NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0`: that one, on all nodes; container: --network=host.",
)
RANK0_LATE = Diagnosis(
    code="log-rank0-late",
    title="a rank never came to the first collective",
    symptoms=(
        "is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0'",
    ),
    explanation="Rank MISSING never came to the first collective: it died before, it still loads or tokenizes, or it"
    " is in another branch of the code.",
    remedy="`py-spy dump --pid PID`: of rank MISSING, while it hangs: where is it? `grep -n 'rankMISSING\\]' LOG |"
    " head`: what did it say first?",
)
RECV_TIMEOUT = Diagnosis(
    code="log-recv-timeout",
    title="a peer sent nothing",
    symptoms=("Timed out waiting 1800000ms for recv operation to complete",),
    explanation="A peer sent nothing for the whole time-out, and Gloo doesn't say which. It is stopped or stuck"
    " outside of the collective, its link is down, or large packets vanish on the way (MTU).",
    remedy="`ss -tnoi`: on NODE; a Send-Q that grows is the link; ping -M do -s 1472 PEER tells a wrong MTU. `ps -o"
    " pid,stat,wchan:20,cmd -C python`: on each node; T is stopped, D waits for a dead mount. `py-spy dump --pid PID`:"
    " of each rank: who is outside of the collective?",
)
SAME_GPU = Diagnosis(
    code="log-same-gpu",
    title="two ranks took one GPU",
    symptoms=(
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        "Multiple Ranks are using the same GPU",
    ),
    explanation="Two ranks took one GPU: the script never calls torch.cuda.set_device(LOCAL_RANK), or more ranks were"
    " started than there are GPUs.",
    remedy="`torch.cuda.set_device(int(os.environ['LOCAL_RANK']))`: in the script, before init_process_group. `echo"
    " $CUDA_VISIBLE_DEVICES; nvidia-smi -L`: on NODE; fewer GPUs than ranks?",
)
SLURM_REQUEST = Diagnosis(
    code="log-slurm-request",
    title="Slurm can't give what was asked for",
    symptoms=("Requested node configuration is not available",),
    explanation="Slurm can't give what was asked for.",
    remedy="`sinfo -o '%P %D %c %m %G %l'`: what there is; scontrol show job JOBID.",
)
STORE_UNREACHABLE = Diagnosis(
    code="log-store-unreachable",
    title="the store of rank 0 can't be reached",
    symptoms=(
        "The client socket has timed out after 600000ms while trying to connect to (n1, 29500).",
        "The connection to the C10d store has failed. See inner exception for details.",
    ),
    explanation="torch says the same for three things: nobody listens there (rank 0 isn't up, or the address is not"
    " its own), a firewall drops the packets, or the name is unknown on this node.",
    remedy="`getent hosts PEER`: on the node that waits; nothing means that the name is unknown. `timeout 3 bash -c"
    " '</dev/tcp/PEER/PORT'; echo $?`: there: 0 open, 1 refused, 124 dropped by a firewall. `ss -ltn | grep PORT`: on"
    " PEER; does rank 0 listen?",
)
STORE_WAIT = Diagnosis(
    code="log-store-wait",
    title="a rank waited for what another one should have written",
    symptoms=("DistStoreError: wait timeout after 300000ms",),
    explanation="A rank waited for what another one should have written into the store: that one died or came late.",
    remedy="`py-spy dump --pid PID`: of a rank that said nothing, while it hangs. `aboard why --log LOGS…`: with the"
    " logs of all nodes: the one that died first is named.",
)
SYNTAX = Diagnosis(
    code="log-syntax",
    title="the code can't be read by this Python",
    symptoms=("SyntaxError: invalid syntax",),
    explanation="The code can't be read by this node's Python: half copied, or written for a newer one.",
    remedy="`python --version; sha256sum *.py`: on each node, where the script is.",
)
TIME_LIMIT = Diagnosis(
    code="log-time-limit",
    title="the job's time was up",
    symptoms=("CANCELLED AT 2026-03-03T12:00:19 DUE TO TIME LIMIT",),
    explanation="The job's time was up.",
    remedy="`#SBATCH --time=24:00:00`: more of it; or checkpoint in time with #SBATCH --signal=USR1@300.",
)
TOKEN_RANGE = Diagnosis(
    code="log-token-range",
    title="a token id is larger than the embedding",
    symptoms=("IndexError: index out of range in self",),
    explanation="A token id is larger than the embedding: the tokenizer has more tokens than the model.",
    remedy="`model.resize_token_embeddings(len(tokenizer))`: or the tokenizer that belongs to the model.",
)
TOLD_TO_STOP = Diagnosis(
    code="log-told-to-stop",
    title="the launcher was told to stop",
    symptoms=("SignalException: Process 77 got signal: 15",),
    explanation="Somebody told the launcher to stop: Slurm at its limit, a preemption, or an ssh session that was"
    " closed (signal 1 is SIGHUP).",
    remedy="`sacct -j JOBID --format=JobID,State,ExitCode,End`: under Slurm: who ended it. `nohup torchrun … &`: over"
    " ssh: outlives the session; or tmux.",
)
UNUSED_PARAMETERS = Diagnosis(
    code="log-unused-parameters",
    title="DDP waited for a gradient that never came",
    symptoms=("Expected to have finished reduction in the prior iteration before starting a new one.",),
    explanation="DDP waited for the gradient of a parameter that had none in this step.",
    remedy="`DistributedDataParallel(model, find_unused_parameters=True)`: or leave the parameter out of the model.",
)
WANDB = Diagnosis(
    code="log-wandb",
    title="Weights & Biases has no key, or no way out",
    symptoms=("wandb.errors.UsageError: api_key not configured",),
    explanation="Weights & Biases has no key, or no way out.",
    remedy="`wandb login`: on NODE; or WANDB_MODE=offline.",
)
WATCHDOG_STUCK = Diagnosis(
    code="log-watchdog-stuck",
    title="torch's watchdog could not run",
    symptoms=("ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",),
    explanation="torch's own watchdog could not run: a thread holds Python's lock (GIL) in a long call, or CUDA itself"
    " hangs.",
    remedy="`py-spy dump --native --pid PID`: while it hangs: which thread holds the GIL? `sudo dmesg -T | grep -i"
    " xid`: on NODE; a GPU that hangs says so here.",
)
WEIGHTS_ONLY = Diagnosis(
    code="log-weights-only",
    title="a checkpoint holds more than weights",
    symptoms=("Weights only load failed.",),
    explanation="torch 2.6 loads weights only by default, and this file holds other objects.",
    remedy="`torch.load(FILE, weights_only=False)`: only for files that you trust: it runs what is in them.",
)
WORLD_MISMATCH = Diagnosis(
    code="log-world-mismatch",
    title="a rank never told its address",
    symptoms=("wait timeout after 300000ms, keys: /default_pg/0//cpu//0/2",),
    explanation="Rank MISSING never wrote its address: it was not started, or RANK and WORLD_SIZE are not what the"
    " others have.",
    remedy="`echo $RANK $WORLD_SIZE`: where each rank starts: every number from 0 once, and one world size. `ps -ef |"
    " grep RANK`: on the node of rank MISSING; does it live, and what did it say last?",
)
INIT_INCOMPLETE = Diagnosis(
    code="log-init-incomplete",
    title="NCCL's set-up began and never ended",
    symptoms=("NCCL INFO ncclCommInitRank comm 0x… rank 0 nranks 8 … - Init START",),
    explanation="NCCL waits without end for ranks that don't come: they died before, were never started, or can't"
    " reach the address that rank 0 told. RAS, the flight recorder and the watchdog all begin after this phase.",
    remedy="While it hangs, `ss -tno state syn-sent` on each node shows whom it can't reach, and `py-spy dump --pid`"
    " where a rank is. `aboard check --only network` tries every pair of nodes.",
    fixes=Command(
        "ss -tno state syn-sent    # on each node, while it hangs: an address behind the arrow is blocked\n"
        "py-spy dump --pid PID    # of {ranks:shell}: where is it?"
    ),
)
PEER_LOST = Diagnosis(
    code="log-peer-lost",
    title="the log only shows that a peer was lost",
    symptoms=(
        "Connection closed by peer [10.0.0.3]:52110",
        "Failed to recv, got 0 bytes. Connection was likely closed.",
    ),
    explanation="A connection broke since the rank at its other end had died. This log holds no cause: that rank's own"
    " log does. With torchrun's c10d rendezvous, clocks more than 15 s apart look the same.",
    remedy="`aboard why --log` with the logs of all nodes names the one that died first. `chronyc tracking` on each"
    " node tells a clock that is off.",
    fixes=Command(f"{_ALL_LOGS}\nchronyc tracking    # on each node; is a clock off?"),
)
UNKNOWN = Diagnosis(
    code="log-unknown",
    title="an error that has no name yet",
    symptoms=("SomeError: words that nobody has seen before",),
    explanation="None of the messages that are known here stands in the log, and it holds errors all the same.",
    remedy="Give the logs of all nodes, and start again with `NCCL_DEBUG=INFO TORCH_DISTRIBUTED_DEBUG=DETAIL` for one"
    " that says more. A log that you can share teaches us: it becomes a test.",
    fixes=Command(
        f"{_ALL_LOGS}\n"
        "export NCCL_DEBUG=INFO TORCH_DISTRIBUTED_DEBUG=DETAIL    # then start again, for a log that says more"
    ),
)
