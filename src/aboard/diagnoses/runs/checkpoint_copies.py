"""Diagnoses of the copies of checkpoints that nodes keep for each other while a run trains."""

from aboard.diagnoses.diagnosis import warning
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
