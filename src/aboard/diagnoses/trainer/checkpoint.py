"""Checkpoints that can't be written, found again or handed over."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice, FixCommand

_INTACT = "The last published checkpoint is intact: the same command resumes from it."
_SAME_LAYOUT = "  # on {here}; or resume with the nodes and ranks that saved it"

DISK_FULL = Diagnosis(
    code="checkpoint-disk-full",
    title="a rank's disk is full",
    symptoms=("OSError: [Errno 28] No space left on device", "OSError: [Errno 122] Disk quota exceeded"),
    explanation=f"A checkpoint in float32 with AdamW takes 12 bytes per parameter, and while one is written there is"
    f" one more than `save_total_limit`. {_INTACT}",
    fixes="df -h {folder}; df -i {folder}; quota -s  # on {node}; make room, or set save_total_limit; then start again",
)

NOT_WRITABLE = Diagnosis(
    code="checkpoint-not-writable",
    title="a rank may not write into output_dir",
    symptoms=("PermissionError: [Errno 13] Permission denied", "OSError: [Errno 30] Read-only file system"),
    explanation=f"The directory belongs to another user on that node, or its disk is mounted read-only, which a file"
    f" system does by itself after a disk error (`dmesg | tail`). {_INTACT}",
    fixes="ls -ld {folder} {path}  # on {node}; the run's user must be able to write there",
)

WRITE = Diagnosis(
    code="checkpoint-write",
    title="a rank's disk did not take a file",
    symptoms=("OSError: [Errno 5] Input/output error", "OSError: [Errno 116] Stale file handle"),
    explanation=f"The file system reported neither a full disk nor missing permissions. {_INTACT}",
    fixes="ls -l {folder}; dmesg | tail  # on {node}",
)

NONE_SOUND = Diagnosis(
    code="checkpoint-none-sound",
    title="there are checkpoints, and none of them verifies",
    symptoms=(
        "no checkpoint in DIR can be used",
        "its sha256 differs",
        "SafetensorError: Error while deserializing header",
    ),
    explanation="In each checkpoint a file is missing, or its size or hash isn't what was written; all are listed with"
    " the reason. Training never starts over silently, so this is an error.",
    fixes="ls -l {folder}  # restore it from a copy; or set resume: none and another output_dir, to start anew",
)

DIFFERS = Diagnosis(
    code="checkpoint-differs",
    title="the checkpoint is of another training",
    symptoms=("can't be continued with these settings", "size mismatch for model.embed_tokens.weight"),
    explanation="With other data, another mix, `max_length` or `seed` the cursor would point at other samples; another"
    " number of sequences per step changes what a step is; another model doesn't fit the weights.",
    remedy="Set back what differs (`global_batch_size` keeps the sequences per step on any number of ranks), or start"
    " anew: `--set train.resume=none` and another `output_dir`.",
    fixes={
        "keep": FixCommand("{keep:--set}    # as it was; to start anew, set resume: none and another output_dir"),
        "back": Advice("set them back as they were; to start anew, set resume: none and another output_dir"),
        "model": Advice("model: {model}  # as it was; or set another output_dir, to start anew"),
        "typed": FixCommand("{typed:shell}    # continues as it was"),
        "anew": FixCommand("{typed:shell}    # starts a new run, and leaves this one as it is"),
    },
)

ELSEWHERE = Diagnosis(
    code="checkpoint-elsewhere",
    title="files of the checkpoint are on another node's disk",
    symptoms=("was saved to several disks, and this layout needs files that are not on this one",),
    explanation="Without a shared disk each node keeps what its own ranks wrote, and another layout needs parts of"
    " others. `output_dir` on a shared disk avoids it, and so do `sharding: none` and `hybrid`.",
    fixes={
        "one": FixCommand(f"rsync -a {{nodes:words}}:{{folder}}/ {{folder}}/{_SAME_LAYOUT}"),
        "several": FixCommand(
            f'for node in {{nodes:words}}; do rsync -a "$node":{{folder}}/ {{folder}}/; done{_SAME_LAYOUT}'
        ),
    },
)

FOLDER_BUSY = Diagnosis(
    code="checkpoint-folder-busy",
    title="another run writes into the same output_dir",
    symptoms=("writes checkpoints into",),
    explanation="Two trainings in one directory would take each other's checkpoints for their own.",
    fixes="ps -p {process}  # on {node}; end it, or choose another output_dir",
)

PEER_LOST = Diagnosis(
    code="checkpoint-peer-lost",
    title="a rank stopped answering while a checkpoint was made",
    symptoms=("Connection closed by peer", "another rank stopped responding during a checkpoint"),
    explanation=f"A checkpoint needs all ranks. One of them died, or its node is gone. {_INTACT}",
    fixes="aboard why  # names the rank; the last published checkpoint is untouched",
)

STUCK = Diagnosis(
    code="checkpoint-stuck",
    title="a checkpoint isn't written after an hour",
    symptoms=("a checkpoint isn't written after 3600 s", "nfs: server not responding, still trying"),
    explanation=f"A disk or a file server doesn't answer. {_INTACT}",
    fixes="aboard check --only storage; dmesg | tail  # finds a disk or a file server that doesn't answer",
)

OUT_OF_STEP = Diagnosis(
    code="checkpoint-out-of-step",
    title="ranks save different steps",
    symptoms=("rank 1 saves step 40 while rank 0 saves step 41",),
    explanation="All ranks do the same steps. That they don't is a bug of ours, or an error of the network.",
    fixes="aboard why  # the ranks have drifted apart; please report it with: aboard bundle",
)

UNUSABLE = Diagnosis(
    code="checkpoint-unusable",
    title="what was named is no checkpoint",
    symptoms=("is not a checkpoint: it was never published", "is not a checkpoint: there is no such folder"),
    explanation="A checkpoint has a manifest.json, which is written last: without it the save was cut off.",
    fixes="ls {parent}  # has the others; resume: auto takes the newest that verifies",
)

DAMAGED = Diagnosis(
    code="checkpoint-damaged",
    title="a file of the checkpoint was changed since it was written",
    symptoms=(
        "isn't what was written (its sha256 differs)",
        "SafetensorError",
        "has a shape that differs from the manifest",
    ),
    explanation="A size or hash isn't that of manifest.json: a copy broke off, a disk fails (`dmesg | tail`), or an"
    " edit.",
    fixes={
        "resume": FixCommand("ls -l {folder}  # resume: auto takes the newest that verifies"),
        "export": FixCommand("ls {folder}   # and export an older one"),
    },
)

LAYOUT = Diagnosis(
    code="checkpoint-layout",
    title="a tensor is spread in a way that checkpoints don't know",
    symptoms=("is placed as _StridedShard, which checkpoints don't support",),
    explanation="Checkpoints know whole tensors, and those that `full`, `hybrid` and `none` cut along dimensions.",
    fixes=Advice("sharding: full  # or hybrid, or none; if it came with one of these, please report it"),
)

STATE = Diagnosis(
    code="checkpoint-state",
    title="the optimizer keeps something that is no tensor",
    symptoms=("the optimizer's step of model.norm.weight is a int, not a tensor",),
    explanation="Only tensors are saved: nothing in a checkpoint is ever run.",
    fixes=Advice("use an optimizer whose state is tensors, such as torch.optim.AdamW"),
)

FAILED = Diagnosis(
    code="checkpoint-failed",
    title="a checkpoint could not be made",
    symptoms=("could not save a checkpoint: RuntimeError",),
    explanation=f"An error without a name yet, on the rank that is named. {_INTACT}",
    fixes="aboard logs --rank {rank}    # has its traceback; please report it with: aboard bundle",
)

EXPORT_TO = Diagnosis(
    code="export-to",
    title="where it was to be exported there is something",
    symptoms=("is there already, and not empty",),
    explanation="An export writes a directory whole or not at all, and overwrites nothing.",
    fixes=Advice("name a directory that is not there yet"),
)

EXPORT_NONE = Diagnosis(
    code="export-none",
    title="there is no whole checkpoint to export",
    symptoms=("there is no whole checkpoint in DIR on this machine",),
    explanation="The run has saved nothing yet (`touch OUTPUT_DIR/SAVE` makes it save now), or it saved on another"
    " node's disk: export there, or copy the directory here.",
    fixes={
        "folder": FixCommand("aboard export {folder} --to DIR"),
        "run": FixCommand("aboard logs {run}    # did it save anything, and on which node?"),
    },
)

EXPORT_RUN = Diagnosis(
    code="export-run",
    title="the run is no training of ours",
    symptoms=("is no training of `aboard train`",),
    explanation="`aboard launch` runs your script, and only that knows what it saved.",
    fixes="aboard export CHECKPOINT --to DIR    # a directory step-…",
)

EXPORT_MODEL = Diagnosis(
    code="export-model",
    title="the model's directory isn't that of the checkpoint",
    symptoms=("is not the model of this checkpoint",),
    explanation="An export takes config.json from where the model was, and its tensors are others by now.",
    fixes="aboard export …   # on a machine that has the model's config.json as it was",
)
