"""The training that a rank was given, with paths of its own node."""

import json
import os
from dataclasses import replace
from pathlib import Path

from aboard.core.training import DataPart, Training
from aboard.diagnoses import AboardError, training

NAME = "ABOARD_TRAINING"


def given() -> Training:
    """From the environment; `~` is the home of this rank's user, wherever that is on this node."""
    text = os.environ.get(NAME)
    if text is None:
        seen = f"there is no training to be done: {NAME} is not set"
        raise AboardError(training.GIVEN, seen)
    found = Training.of(json.loads(text))
    return replace(
        found,
        model=_here(found.model),
        tokenizer=found.tokenizer and _here(found.tokenizer),
        data=tuple(map(_part, found.data)),
        validation=tuple(map(_part, found.validation)),
        output_dir=_here(found.output_dir),
        resume=_here(found.resume),
    )


def _part(part: DataPart) -> DataPart:
    return replace(part, shards=_here(part.shards), bins=_here(part.bins))


def _here(path: str) -> str:
    return str(Path(path).expanduser()) if path.startswith("~/") else path
