"""A run that learns nothing."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity

NO_NUMBER = Diagnosis(
    code="loss-no-number",
    title="the loss is nan or inf",
    severity=Severity.WARN,
    symptoms=("loss: nan", "'loss': 0.0, 'grad_norm': nan"),
    explanation="Every step from here on is lost. The learning rate is too high, a batch has a bad value, fp16 has no"
    " loss scale, or, on one node only, the hardware is broken.",
    fixes="aboard stop {run}    # then go on from the last checkpoint, with a lower learning rate or in bf16",
)
