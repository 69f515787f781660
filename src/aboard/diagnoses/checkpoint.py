"""Checkpoints that can't be written, found again or handed over."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice, Command

_WHOLE = "The last published checkpoint is whole: nothing that has a marker is ever written to again."
_REPORT = "Please report it, with `aboard bundle RUN`."

DISK_FULL = Diagnosis(
    code="checkpoint-disk-full",
    title="a rank's disk is full",
    symptoms=("OSError: [Errno 28] No space left on device", "OSError: [Errno 122] Disk quota exceeded"),
    explanation=f"A checkpoint in float32 with AdamW has 12 bytes a parameter, and while it is written there is"
    f" one more than `save_total_limit`. All ranks stop with the node, the rank and the path. {_WHOLE}",
    remedy="`df -h DIR` and `df -i DIR` on that node, `quota -s` for a quota. Make room, set"
    " `train.save_total_limit`, then give the same command again: it resumes.",
    fixes="df -h {folder}  # on {node}; make room, or set save_total_limit; then start again: it resumes",
)

NOT_WRITABLE = Diagnosis(
    code="checkpoint-not-writable",
    title="a rank may not write into output_dir",
    symptoms=("PermissionError: [Errno 13] Permission denied", "OSError: [Errno 30] Read-only file system"),
    explanation=f"The directory belongs to somebody else on that node, or its disk is mounted read-only. {_WHOLE}",
    remedy="`ls -ld DIR` and `namei -l DIR` on that node; `dmesg | tail` if it became read-only by itself, which is"
    " what a file system does after an error of its disk.",
    fixes="ls -ld {folder} {path}  # on {node}; the run's user must be able to write there",
)

WRITE = Diagnosis(
    code="checkpoint-write",
    title="a rank's disk did not take a file",
    symptoms=("OSError: [Errno 5] Input/output error", "OSError: [Errno 116] Stale file handle"),
    explanation=f"The file system gave an error that is neither a full disk nor missing rights. {_WHOLE}",
    remedy="`dmesg | tail` on that node; for a network disk, see its server. Then give the same command again.",
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
    explanation="Every file has the size and the hash that were written, or the checkpoint is not used. Each that"
    " is there is listed with its reason. Weeks of training are not begun anew in silence, so it is an error.",
    remedy="Mend one from a copy, and give the same command again. To begin anew on purpose: `--set"
    " train.resume=none` and another `output_dir`.",
    fixes="ls -l {folder}  # mend it from a copy; or set resume: none and another output_dir, to start anew",
)

DIFFERS = Diagnosis(
    code="checkpoint-differs",
    title="the checkpoint is of another training",
    symptoms=("can't be continued with these settings", "size mismatch for model.embed_tokens.weight"),
    explanation="Other data, another mix, `max_length` or `seed` would let the cursor point at other samples;"
    " another number of sequences a step makes a step another amount of data; another model doesn't fit the"
    " weights. What else differs is shown and taken.",
    remedy="Type what stands behind `fix` to keep it as it was; with `global_batch_size` the number of ranks may"
    " change freely. Or start anew: `--set train.resume=none` and another `output_dir`.",
    fixes={
        "keep": Command("{keep:--set}    # as it was; to start anew, set resume: none and another output_dir"),
        "back": Advice("set them back as they were; to start anew, set resume: none and another output_dir"),
        "model": Advice("model: {model}  # as it was; or set another output_dir, to start anew"),
        "typed": Command("{typed:shell}    # continues as it was"),
        "anew": Command("{typed:shell}    # starts a new run, and leaves this one as it is"),
    },
)

ELSEWHERE = Diagnosis(
    code="checkpoint-elsewhere",
    title="files of the checkpoint are on another node's disk",
    symptoms=("was saved onto several disks, and this layout needs files that aren't on this one",),
    explanation="Without a shared disk each node keeps what its own ranks wrote. The same nodes and ranks resume"
    " from that; a layout that needs the parts of others must be given them.",
    remedy="Type the `rsync` that the message has, on the node that it names; or resume with the nodes and ranks"
    " that saved it. `output_dir` on a shared disk avoids it, and so do `sharding: none` and `hybrid`.",
    fixes={
        "one": Command(
            "rsync -a {nodes:words}:{folder}/ {folder}/  # on {here}; or resume with the nodes and ranks that saved it"
        ),
        "several": Command(
            'for node in {nodes:words}; do rsync -a "$node":{folder}/ {folder}/; done'
            "  # on {here}; or resume with the nodes and ranks that saved it"
        ),
    },
)

FOLDER_BUSY = Diagnosis(
    code="checkpoint-folder-busy",
    title="another run writes into the same output_dir",
    symptoms=("writes checkpoints into",),
    explanation="Two trainings in one directory would take each other's checkpoints for their own.",
    remedy="`aboard status` and `ps -p PID` on the node that is named: end the other one, or choose another"
    " `train.output_dir`. A process that is gone holds no lock.",
    fixes="ps -p {process}  # on {node}; end it, or choose another output_dir",
)

PEER_LOST = Diagnosis(
    code="checkpoint-peer-lost",
    title="a rank stopped answering while a checkpoint was made",
    symptoms=("Connection closed by peer", "another rank stopped answering while a checkpoint was made"),
    explanation=f"A checkpoint needs all ranks. One of them died, or its node is gone. {_WHOLE}",
    remedy="`aboard why` names the rank and what became of it. Then give the same command again: it resumes.",
    fixes="aboard why  # names the rank; the last published checkpoint is untouched",
)

STUCK = Diagnosis(
    code="checkpoint-stuck",
    title="a checkpoint isn't written after an hour",
    symptoms=("a checkpoint isn't written after 3600 s", "nfs: server not responding, still trying"),
    explanation=f"A disk or a file server doesn't answer. {_WHOLE}",
    remedy="`timeout 5 df -h DIR` and `dmesg | tail` on the nodes; `aboard check --only storage` finds dead mounts.",
    fixes="dmesg | tail  # a disk or a file server that doesn't answer?",
)

OUT_OF_STEP = Diagnosis(
    code="checkpoint-out-of-step",
    title="ranks save different steps",
    symptoms=("rank 1 saves step 40 while rank 0 saves step 41",),
    explanation="All ranks do the same steps. That they don't is an error of ours, or of the network between them.",
    remedy=f"`aboard why` shows where each stands. {_REPORT}",
    fixes="aboard why  # the ranks have drifted apart",
)

UNUSABLE = Diagnosis(
    code="checkpoint-unusable",
    title="what was named is no checkpoint",
    symptoms=("is no checkpoint: it was never published", "is no checkpoint: there is no such folder"),
    explanation="A checkpoint is a directory with a manifest.json, which is written last. Without it the save was"
    " cut off.",
    remedy="`ls OUTPUT_DIR` has the others; `train.resume: auto` takes the newest that verifies.",
    fixes="ls {parent}  # has the others; see docs/checkpoints.md",
)

DAMAGED = Diagnosis(
    code="checkpoint-damaged",
    title="a file of the checkpoint was changed since it was written",
    symptoms=(
        "isn't what was written (its sha256 differs)",
        "SafetensorError",
        "has another shape of it than the manifest",
    ),
    explanation="Sizes and hashes of all files are in manifest.json. A copy that broke off, a disk that lies or a"
    " hand that edited it shows there.",
    remedy="Copy it again from where it is whole, or take an older one. `dmesg | tail` tells of a disk that fails.",
    fixes={
        "resume": Command("ls -l {folder}  # resume: auto takes the newest that verifies"),
        "export": Command("ls {folder}   # and export an older one"),
    },
)

LAYOUT = Diagnosis(
    code="checkpoint-layout",
    title="a tensor is spread in a way that checkpoints don't know",
    symptoms=("is placed as _StridedShard, which checkpoints don't know",),
    explanation="Checkpoints know tensors that are whole, or cut along their dimensions, as `full`, `hybrid` and"
    " `none` do it.",
    remedy=f"Use one of those. If it came with one of them: {_REPORT.lower()}",
    fixes=Advice("sharding: full  # or hybrid, or none"),
)

STATE = Diagnosis(
    code="checkpoint-state",
    title="the optimizer keeps something that is no tensor",
    symptoms=("the optimizer's step of model.norm.weight is a int, not a tensor",),
    explanation="Only tensors are saved: nothing in a checkpoint is ever run.",
    remedy="Use an optimizer whose state is tensors, such as torch.optim.AdamW.",
    fixes=Advice("use an optimizer whose state is tensors, such as torch.optim.AdamW"),
)

FAILED = Diagnosis(
    code="checkpoint-failed",
    title="a checkpoint could not be made",
    symptoms=("couldn't make a checkpoint: RuntimeError",),
    explanation=f"An error that has no name yet, on the rank that is named. {_WHOLE}",
    remedy=f"`aboard logs --rank N` has its trace. {_REPORT}",
    fixes="aboard logs --rank {rank}",
)

EXPORT_TO = Diagnosis(
    code="export-to",
    title="where it was to be exported there is something",
    symptoms=("is there already, and not empty",),
    explanation="An export writes a directory whole or not at all, and overwrites nothing.",
    remedy="Name a directory that is not there yet: `aboard export RUN --to ./trained-2`.",
    fixes={
        "": Advice("name a directory that is not there"),
        "typed": Advice("name a directory that is not there yet"),
    },
)

EXPORT_NONE = Diagnosis(
    code="export-none",
    title="there is no whole checkpoint to export",
    symptoms=("there is no whole checkpoint in DIR on this machine",),
    explanation="The run has saved nothing yet, or on another node's disk: `output_dir` is the same path on every"
    " node.",
    remedy="`aboard logs RUN` tells what was published, and where. Export on that node, or bring the directory"
    " here. `touch OUTPUT_DIR/SAVE` asks a running training for one now.",
    fixes={
        "folder": Command("aboard export {folder} --to DIR"),
        "run": Command("aboard logs {run}    # did it save anything, and on which node?"),
    },
)

EXPORT_RUN = Diagnosis(
    code="export-run",
    title="the run is no training of ours",
    symptoms=("is no training of `aboard train`",),
    explanation="`aboard launch` runs your script, and only that knows what it saved.",
    remedy="Name a checkpoint of `aboard train` instead: `aboard export output/step-000200 --to ./trained`.",
    fixes="aboard export CHECKPOINT --to DIR    # a directory step-…",
)

EXPORT_MODEL = Diagnosis(
    code="export-model",
    title="the model's directory isn't that of the checkpoint",
    symptoms=("is not the model of this checkpoint",),
    explanation="An export takes config.json from where the model was, and its tensors are others by now.",
    remedy="Export on a machine that has the model's config.json as it was when it was trained.",
    fixes="aboard export …   # on a machine that has the model's config.json as it was",
)
