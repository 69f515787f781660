"""A run that learns nothing."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity

NO_NUMBER = Diagnosis(
    code="loss-no-number",
    title="the loss is nan or inf",
    severity=Severity.WARN,
    symptoms=("loss: nan", "'loss': 0.0, 'grad_norm': nan"),
    explanation="A learning rate that is too high, a bad batch, fp16 without a loss scale; on one node only, broken"
    " hardware.",
    remedy="Go on from the last checkpoint with a lower learning rate, in bf16, and look at the batch of that step.",
    fixes="aboard stop {run}    # then go on from the last checkpoint, with a lower learning rate or in bf16",
)
