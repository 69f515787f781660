"""Diagnoses of checkpoints that can't be written, resumed from or exported."""

from aboard.diagnoses.diagnosis import Diagnosis, Mistake, RunFailure
from aboard.diagnoses.failure_class import Circumstance, FailureClass
from aboard.diagnoses.fixes import Advice

_INTACT = "The last complete checkpoint is intact, and the same command resumes from it."
_SAME_LAYOUT = "  # on {here}; or resume on the nodes and ranks that saved it"

DISK_FULL = RunFailure(
    code="checkpoint-disk-full",
    restart=Circumstance.BY_DISK,
    title="a rank's disk is full",
    symptoms=("OSError: [Errno 28] No space left on device", "OSError: [Errno 122] Disk quota exceeded"),
    explanation=f"A float32 checkpoint with AdamW takes 12 bytes per parameter. While a checkpoint is being written,"
    f" the disk holds one checkpoint more than `save_total_limit`. {_INTACT}",
    fixes="df -h {folder}; df -i {folder}; quota -s  # on {node}; free space, or set save_total_limit; then restart",
)

NOT_WRITABLE = RunFailure(
    code="checkpoint-not-writable",
    restart=FailureClass.PROGRAM,
    title="a rank has no permission to write to output_dir",
    symptoms=("PermissionError: [Errno 13] Permission denied", "OSError: [Errno 30] Read-only file system"),
    explanation=f"The directory on that node may belong to another user, or its disk may be mounted read-only. File"
    f" systems often become read-only after a disk error (`dmesg | tail`). {_INTACT}",
    fixes="ls -ld {folder} {path}  # on {node}; the run's user needs write permission there",
)

WRITE = RunFailure(
    code="checkpoint-write",
    restart=FailureClass.NODE,
    title="a rank failed to write a file",
    symptoms=("OSError: [Errno 5] Input/output error", "OSError: [Errno 116] Stale file handle"),
    explanation=f"The write failed for a reason other than a full disk or missing permissions, for example a disk or"
    f" file server error. {_INTACT}",
    fixes="ls -l {folder}; dmesg | tail  # on {node}",
)

NONE_SOUND = RunFailure(
    code="checkpoint-none-sound",
    restart=FailureClass.PROGRAM,
    title="no checkpoint passes verification",
    symptoms=(
        "no checkpoint in DIR can be used",
        "its sha256 differs",
        "SafetensorError: Error while deserializing header",
    ),
    explanation="In every checkpoint, a file is missing, or its size or hash differs from what was written. Aboard"
    " stops here because it never silently starts training over.",
    fixes="ls -l {folder}  # restore the files from a copy; to start over: resume: none and a different output_dir",
)

DIFFERS = RunFailure(
    code="checkpoint-differs",
    restart=FailureClass.PROGRAM,
    title="the checkpoint belongs to a different training setup",
    symptoms=("can't be continued with these settings", "size mismatch for model.embed_tokens.weight"),
    explanation="If the data, the mix, `max_length` or `seed` changed, the saved data position would point to"
    " different samples. A different number of sequences per step changes what a step is, and a different model"
    " doesn't match the weights.",
    remedy="Restore the settings that have changed since the checkpoint, or start over with `--set train.resume=none`"
    " and a different `output_dir`. `global_batch_size` keeps the number of sequences per step the same on any number"
    " of ranks.",
    fixes={
        "keep": "{keep:--set}    # as in the checkpoint; to start over: resume: none and a different output_dir",
        "back": Advice("restore the old values; to start over: resume: none and a different output_dir"),
        "model": Advice("model: {model}  # as in the checkpoint; to start over, set a different output_dir"),
        "typed": "{typed:shell}    # continues with the checkpoint's settings",
        "anew": "{typed:shell}    # starts a new run, and keeps this one unchanged",
    },
)

ELSEWHERE = RunFailure(
    code="checkpoint-elsewhere",
    restart=FailureClass.PROGRAM,
    title="some checkpoint files are on another node's disk",
    symptoms=("was saved to several disks, and resuming with this layout needs files that are not on this disk",),
    explanation="Without a shared disk, each node stores only what its own ranks wrote, so resuming with different"
    " nodes, ranks or sharding needs files from other nodes. `aboard train` copies them before ranks start, as far as"
    " it can reach the nodes that have them.",
    fixes={
        "one": f"rsync -a {{nodes:words}}:{{folder}}/ {{folder}}/{_SAME_LAYOUT}",
        "several": f'for node in {{nodes:words}}; do rsync -a "$node":{{folder}}/ {{folder}}/; done{_SAME_LAYOUT}',
    },
)

PEER_LOST = RunFailure(
    code="checkpoint-peer-lost",
    restart=FailureClass.TRANSIENT,
    title="a rank stopped responding during a checkpoint",
    symptoms=("Connection closed by peer", "another rank stopped responding during a checkpoint"),
    explanation=f"A checkpoint needs all ranks. One of them died, or its node went down. {_INTACT}",
    fixes="aboard why  # shows which rank it was; the last complete checkpoint is intact",
)

STUCK = RunFailure(
    code="checkpoint-stuck",
    restart=FailureClass.TRANSIENT,
    title="a checkpoint took more than an hour to write",
    symptoms=("a checkpoint was not complete after 3600 s", "nfs: server not responding, still trying"),
    explanation=f"Usually a disk or a file server is not responding. {_INTACT}",
    fixes="aboard check --only storage; dmesg | tail  # finds a disk or file server that does not respond",
)

OUT_OF_STEP = RunFailure(
    code="checkpoint-out-of-step",
    restart=FailureClass.PROGRAM,
    title="ranks are saving different steps",
    symptoms=("rank 1 is saving step 40 while rank 0 is saving step 41",),
    explanation="All ranks must run the same steps. If they don't, the cause is a bug in Aboard or a network error.",
    fixes="aboard why  # the ranks are out of step; please report it with: aboard bundle",
)

UNUSABLE = Mistake(
    code="checkpoint-unusable",
    fixes="ls {parent}  # lists the other checkpoints; resume: auto uses the newest intact one",
)

DAMAGED = RunFailure(
    code="checkpoint-damaged",
    restart=FailureClass.UNKNOWN,
    title="a checkpoint file changed after it was written",
    symptoms=(
        "isn't what was written (its sha256 differs)",
        "SafetensorError",
        "has a shape that differs from the manifest",
    ),
    explanation="A file's size or hash differs from manifest.json. A copy may have been interrupted, a disk may be"
    " failing (`dmesg | tail`), or someone may have edited the file.",
    fixes={
        "resume": "ls -l {folder}  # resume: auto uses the newest intact one",
        "export": "ls {folder}   # then export an older checkpoint",
    },
)

LAYOUT = RunFailure(
    code="checkpoint-layout",
    restart=FailureClass.PROGRAM,
    title="a tensor has a placement that checkpoints don't support",
    symptoms=("is placed as _StridedShard, which checkpoints don't support",),
    explanation="Checkpoints support whole tensors, and tensors that are split along dimensions. The `sharding`"
    " settings `full`, `hybrid` and `none` produce only these.",
    fixes=Advice("sharding: full  # or hybrid, or none; if one of these caused it, please report it"),
)

STATE = RunFailure(
    code="checkpoint-state",
    restart=FailureClass.PROGRAM,
    title="the optimizer state contains something other than tensors",
    symptoms=("the optimizer's step of model.norm.weight is a int, not a tensor",),
    explanation="Only tensors are saved, so that loading a checkpoint never executes code.",
    fixes=Advice("use an optimizer whose state is tensors, such as torch.optim.AdamW"),
)

FAILED = RunFailure(
    code="checkpoint-failed",
    restart=Circumstance.BY_DISK,
    title="a checkpoint failed",
    symptoms=("could not save a checkpoint: RuntimeError",),
    explanation=f"A rank failed with an unexpected error while it was saving a checkpoint. {_INTACT}",
    fixes="aboard logs --rank {rank}    # shows its traceback; please report it with: aboard bundle",
)

EXPORT_TO = Mistake(code="export-to", fixes=Advice("pass a new or empty directory"))

EXPORT_NONE = Mistake(
    code="export-none",
    fixes={
        "folder": "aboard export {folder} --to DIR",
        "run": "aboard logs {run}    # did it save a checkpoint, and on which node?",
        "running": "aboard status {run} --live    # shows when the first one is saved; then export again",
        "newest": "aboard export {what} --checkpoint {name} --to DIR    # the newest instead",
    },
)

EXPORT_PART = Diagnosis(
    code="export-part",
    title="a part of the checkpoint can't be fetched from its node",
    symptoms=("and no other node has a copy",),
    explanation="Without a shared disk, each node stores what its own ranks wrote, and an export needs the weights of"
    " all of them. The node that has this part is off, was replaced, or its file is damaged.",
    fixes={
        "older": "aboard export {run} --checkpoint {name} --to {to}    # the newest one that is complete without that"
        " part",
        "wait": "aboard export {run} --to {to}    # again, when {node} is back",
    },
)

PARTS_LOST = RunFailure(
    code="checkpoint-parts-lost",
    restart=FailureClass.PROGRAM,
    title="no checkpoint is complete on the nodes that can be reached",
    symptoms=("no checkpoint of DIR is complete",),
    explanation="Without a shared disk, each node stores what its own ranks wrote. Aboard copies missing parts between"
    " nodes before it resumes, but a part of every checkpoint is on a node that is off, or is damaged. It never"
    " silently starts training over.",
    fixes="aboard check {node}    # when it is back, the same command resumes; to start over: --set train.resume=none",
)

EXPORT_RUN = Mistake(code="export-run", fixes="aboard export CHECKPOINT --to DIR    # a directory named step-…")

EXPORT_MODEL = Diagnosis(
    code="export-model",
    title="the model directory does not match the checkpoint",
    symptoms=("is not the model of this checkpoint", "these adapters were trained on other base weights"),
    explanation="An export copies config.json from the original model directory, and the tensors in that directory no"
    " longer match the checkpoint's. An adapter is of use only with the weights that it was trained on.",
    fixes="aboard export …   # on a machine that has the model as it was trained",
)

EXPORT_MERGE = Mistake(code="export-merge", fixes="aboard export {what} --to {to}    # exports the whole model")

EXPORT_PEFT = Diagnosis(
    code="export-peft",
    title="PEFT is not installed on this machine",
    symptoms=("the export of an adapter needs peft",),
    explanation="The nodes that trained the adapter have PEFT; the machine that exports it needs it, too.",
    fixes="pip install '.[lora]'    # in the checkout of Aboard",
)
