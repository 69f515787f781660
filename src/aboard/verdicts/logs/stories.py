"""The story of each code that only a log can have; why and what to type are those of the symptom itself."""

from collections.abc import Iterator

from aboard.core.rule import Subject
from aboard.diagnoses import Diagnosis, Severity
from aboard.verdicts.logs.reader import RAISED
from aboard.verdicts.logs.symptom import Role, Symptom
from aboard.verdicts.logs.table import SYMPTOMS
from aboard.verdicts.logs.words import filled

# A code's title, then texts that people paste into a search box.
_TITLES: dict[str, tuple[str, ...]] = {
    "log-arguments": ("the script was given arguments that it doesn't take", "error: unrecognized arguments: --foo"),
    "log-cancelled": (
        "the job was cancelled",
        "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-03-03T12:00:19 ***",
    ),
    "log-checkpoint-shape": (
        "the checkpoint is of another model, or of another number of ranks",
        "size mismatch for lm_head.weight: copying a param with shape",
        "Missing key(s) in state_dict",
    ),
    "log-checkpoint-torn": (
        "a checkpoint was not written to its end",
        "PytorchStreamReader failed reading zip archive: failed finding central directory",
        "Error while deserializing header: MetadataIncompleteBuffer",
    ),
    "log-clients-missing": (
        "not all ranks came to the rendezvous",
        "Timed out after 301 seconds waiting for clients. 6/8 clients joined.",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
    ),
    "log-collective-timeout": (
        "a collective came to no end",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=78, OpType=BROADCAST, NumelIn=…",
    ),
    "log-container": ("a container could not be started", "slurmstepd: error: pyxis: container start failed"),
    "log-container-gpu": (
        "a container gets no GPU",
        "Could not find any nv files on this host!",
        "nvidia-container-cli: initialization error",
    ),
    "log-cpu-binding": (
        "ranks are bound to cores that the job hasn't got",
        "CPU binding outside of job step allocation",
    ),
    "log-cuda-error": ("a call to the GPU failed", "CUDA error: unknown error", "CUBLAS_STATUS_EXECUTION_FAILED"),
    "log-deepspeed-batch": (
        "DeepSpeed's batch sizes don't fit the number of ranks",
        "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu",
    ),
    "log-device-assert": ("a kernel met a value that can't be", "CUDA error: device-side assert triggered"),
    "log-extension": ("a native extension could not be built", "Error building extension 'fused_adam'"),
    "log-gpu-memory": (
        "the GPU's memory is too small",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",
    ),
    "log-hostfile": ("DeepSpeed can't use its hostfile", "Hostfile is empty or not formatted correctly"),
    "log-hub": ("the hub wants a login", "GatedRepoError: 401 Client Error", "Cannot access gated repo for url"),
    "log-hub-unreachable": (
        "a node can't reach the hub",
        "We couldn't connect to 'https://huggingface.co' to load the files",
        "LocalEntryNotFoundError",
    ),
    "log-illegal-access": (
        "a kernel touched memory that isn't its own",
        "CUDA error: an illegal memory access was encountered",
    ),
    "log-import": ("a package is another version than the code wants", "ImportError: cannot import name"),
    "log-interrupted": ("somebody pressed Ctrl-C", "KeyboardInterrupt", "got signal: 2"),
    "log-io-error": ("a disk fails", "OSError: [Errno 5] Input/output error", "blk_update_request: I/O error"),
    "log-library": (
        "a native library is missing, or of another version",
        "ImportError: libcudart.so.11.0: cannot open shared object file",
        "undefined symbol: ncclCommRegister",
    ),
    "log-loader": ("a data-loader worker died", "DataLoader worker (pid(s) 4711) exited unexpectedly"),
    "log-local-only": (
        "DeepSpeed trains on one machine only",
        "Unable to find hostfile, will proceed with training with local resources only.",
    ),
    "log-local-rank": ("the script doesn't know --local-rank", "error: unrecognized arguments: --local-rank=0"),
    "log-loss-scale": (
        "training in fp16 diverged",
        "Current loss scale already at minimum - cannot decrease scale anymore",
    ),
    "log-mesh": (
        "Gloo could not connect all ranks",
        "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
    ),
    "log-mismatch": (
        "ranks met in different collectives",
        "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?",
        "Detected mismatch between collectives on ranks. Rank 2 is running collective:",
    ),
    "log-model-differs": ("ranks built different models", "DDP expects same model across all ranks, but Rank 0 has"),
    "log-model-missing": (
        "a model's path is not there",
        "is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
    ),
    "log-module-missing": ("a rank's Python has no such module", "ModuleNotFoundError: No module named 'flash_attn'"),
    "log-nan": ("the loss is no number any more", "{'loss': nan, 'grad_norm': nan}"),
    "log-nccl-algorithm": ("NCCL is left no algorithm", "NCCL WARN Error : no algorithm/protocol available"),
    "log-nccl-cuda": ("a CUDA call failed inside of NCCL", "ncclUnhandledCudaError: Call to CUDA function failed."),
    "log-nccl-internal": ("NCCL met what it did not expect", "ncclInternalError: Internal check failed."),
    "log-nccl-invalid": (
        "NCCL was called in a way that it can't obey",
        "ncclInvalidUsage: This usually reflects invalid usage",
    ),
    "log-nccl-system": (
        "a system call failed inside of NCCL",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
    ),
    "log-nvls": ("NVLink SHARP can't be set up", "Failed to bind NVLink SHARP (NVLS) Multicast memory of size"),
    "log-permission": ("a path may not be used on a node", "PermissionError: [Errno 13] Permission denied:"),
    "log-preempted": ("a job of higher priority took the nodes", "CANCELLED AT 2026-06-06T06:06:06 DUE TO PREEMPTION"),
    "log-private-address": (
        "a peer told an address that only it has",
        "socketStartConnect: Connect to 172.17.0.2<43369> failed : Connection refused",
        "Connect to 169.254.20.10<43369> failed : Software caused connection abort",
    ),
    "log-rank-behind": ("ranks did not come to a barrier", "Ranks 1 failed to pass monitoredBarrier in 4000 ms"),
    "log-rank0-late": (
        "a rank never came to the first collective",
        "is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0'",
    ),
    "log-recv-timeout": ("a peer sent nothing", "Timed out waiting 1800000ms for recv operation to complete"),
    "log-same-gpu": (
        "two ranks took one GPU",
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        "Multiple Ranks are using the same GPU",
    ),
    "log-slurm-request": ("Slurm can't give what was asked for", "Requested node configuration is not available"),
    "log-store-unreachable": (
        "the store of rank 0 can't be reached",
        "The client socket has timed out after 600000ms while trying to connect to (n1, 29500).",
        "The connection to the C10d store has failed. See inner exception for details.",
    ),
    "log-store-wait": (
        "a rank waited for what another one should have written",
        "DistStoreError: wait timeout after 300000ms",
    ),
    "log-syntax": ("the code can't be read by this Python", "SyntaxError: invalid syntax"),
    "log-time-limit": ("the job's time was up", "CANCELLED AT 2026-03-03T12:00:19 DUE TO TIME LIMIT"),
    "log-token-range": ("a token id is larger than the embedding", "IndexError: index out of range in self"),
    "log-told-to-stop": ("the launcher was told to stop", "SignalException: Process 77 got signal: 15"),
    "log-unused-parameters": (
        "DDP waited for a gradient that never came",
        "Expected to have finished reduction in the prior iteration before starting a new one.",
    ),
    "log-wandb": ("Weights & Biases has no key, or no way out", "wandb.errors.UsageError: api_key not configured"),
    "log-watchdog-stuck": (
        "torch's watchdog could not run",
        "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",
    ),
    "log-weights-only": ("a checkpoint holds more than weights", "Weights only load failed."),
    "log-world-mismatch": (
        "a rank never told its address",
        "wait timeout after 300000ms, keys: /default_pg/0//cpu//0/2",
    ),
}
_OWN = (
    Diagnosis(
        code="log-init-incomplete",
        title="NCCL's set-up began and never ended",
        severity=Severity.BLOCK,
        symptoms=("NCCL INFO ncclCommInitRank comm 0x… rank 0 nranks 8 … - Init START",),
        explanation="NCCL waits without end for ranks that don't come: they died before, were never started, or can't"
        " reach the address that rank 0 told. RAS, the flight recorder and the watchdog all begin after this phase.",
        remedy="While it hangs, `ss -tno state syn-sent` on each node shows whom it can't reach, and `py-spy dump"
        " --pid` where a rank is. `aboard check --only network` tries every pair of nodes.",
    ),
    Diagnosis(
        code="log-peer-lost",
        title="the log only shows that a peer was lost",
        severity=Severity.BLOCK,
        symptoms=(
            "Connection closed by peer [10.0.0.3]:52110",
            "Failed to recv, got 0 bytes. Connection was likely closed.",
        ),
        explanation="A connection broke since the rank at its other end had died. This log holds no cause: that rank's"
        " own log does. With torchrun's c10d rendezvous, clocks more than 15 s apart look the same.",
        remedy="`aboard why --log` with the logs of all nodes names the one that died first. `chronyc tracking` on each"
        " node tells a clock that is off.",
    ),
    Diagnosis(
        code="log-unknown",
        title="an error that has no name yet",
        severity=Severity.BLOCK,
        symptoms=("SomeError: words that nobody has seen before",),
        explanation="None of the messages that are known here stands in the log, and it holds errors all the same.",
        remedy="Give the logs of all nodes, and start again with `NCCL_DEBUG=INFO TORCH_DISTRIBUTED_DEBUG=DETAIL` for"
        " one that says more. A log that you can share teaches us: it becomes a test.",
    ),
)


def _stories() -> Iterator[Diagnosis]:
    for code, (title, *shows) in sorted(_TITLES.items()):
        first = next(symptom for symptom in (*SYMPTOMS, RAISED) if symptom.code == code)
        yield Diagnosis(
            code=code,
            title=title,
            severity=Severity.WARN if first.role is Role.ODD else Severity.BLOCK,
            symptoms=tuple(shows),
            explanation=filled(first.why, {}),
            remedy=_mend(first),
        )


def _mend(symptom: Symptom) -> str:
    """The commands of the fix as sentences."""
    parts = []
    for line in filled(symptom.fix, {}).splitlines():
        command, _, remark = line.partition("    # ")
        told = f"`{command}`: {remark}" if remark else f"`{command}`"
        parts.append(told if told.endswith("?") else f"{told}.")
    return " ".join(parts) or "Nothing is to be mended: it was asked to end."


# A subject as the checks have them, so that every code has its story and its page in one way.
LOG = Subject(
    name="log",
    title="logs of any launcher, explained",
    probes=(),
    rules=(),
    stories=(*_stories(), *_OWN),
    asked="aboard why --log FILE",
)
