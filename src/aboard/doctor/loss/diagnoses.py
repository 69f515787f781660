"""Diagnoses of a loss that is not a number."""

from aboard.diagnoses.diagnosis import run_warning
from aboard.diagnoses.failure_class import FailureClass

NO_NUMBER = run_warning(
    code="loss-no-number",
    restart=FailureClass.PROGRAM,
    title="the loss is NaN or infinite",
    symptoms=("loss: nan", "'loss': 0.0, 'grad_norm': nan"),
    explanation="Every step from here on is wasted. Possible causes: the learning rate is too high, a batch has a bad"
    " value, fp16 is used without loss scaling, or, if it happens on only one node, that node's hardware is faulty.",
    fixes="aboard stop {run}    # then resume from the last checkpoint, with a lower learning rate or bf16",
)
