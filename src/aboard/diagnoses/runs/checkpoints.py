"""Diagnoses of checkpoints that a run itself meets: the copies that nodes keep for each other, a folder in use."""

from aboard.diagnoses.diagnosis import RunFailure, warning
from aboard.diagnoses.failure_class import FailureClass
from aboard.diagnoses.fixes import Advice

NOT_COPIED = warning(
    code="checkpoint-not-copied",
    title="parts of a checkpoint are on one node only",
    symptoms=("is not copied to",),
    explanation="Without a shared disk, each node copies its part of every checkpoint to another one, so that a lost"
    " node costs no more than the steps since. A part of this checkpoint is on one node only; the run is not affected.",
    fixes={
        "full": "df -h    # on {node}: output_dir needs space for two more parts of a checkpoint",
        "peer": "aboard check {nodes:words}    # can the nodes connect to each other?",
        "damaged": "aboard check {nodes:words}    # is a disk or a link failing?",
        "late": Advice("raise train.checkpoint_copy_rate, or save less often; the next run goes on with the copy"),
    },
)

FOLDER_BUSY = RunFailure(
    code="checkpoint-folder-busy",
    restart=FailureClass.OUTSIDE,
    title="another run is writing to the same output_dir",
    symptoms=("is already writing checkpoints to",),
    explanation="Two runs in one directory would mistake each other's checkpoints for their own.",
    fixes="ps -p {process}  # on {node}; stop it, or choose a different output_dir",
)
