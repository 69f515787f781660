"""Diagnoses of LoRA adapters that can't be added to a model or continued."""

from aboard.diagnoses.diagnosis import Diagnosis

DROPOUT = Diagnosis(
    code="adapter-dropout",
    title="dropout can't be drawn per sample in this module",
    symptoms=("gets 12 inputs, not one for each token",),
    explanation="`adapter.dropout` is drawn per sample and position, so that losses don't depend on the number of"
    " ranks. A module that gets only some tokens, such as an expert, doesn't say which ones.",
    fixes="--set train.adapter.dropout=0    # or list target_modules without this module",
)
