"""The training settings of a rank, with the paths of its own node."""

import json
import os
from dataclasses import replace
from pathlib import Path

from aboard.core.plan.training_settings import DataPart, Training
from aboard.diagnoses import TrainerError
from aboard.trainer.diagnoses import training

ENVIRONMENT_NAME = "ABOARD_TRAINING"


def read_job_spec() -> Training:
    """Reads the settings from the environment; `~` is the home of this rank's user on this node."""
    text = os.environ.get(ENVIRONMENT_NAME)
    if text is None:
        seen = f"no training settings: {ENVIRONMENT_NAME} is not set"
        raise TrainerError(training.GIVEN, seen)
    job = Training.of(json.loads(text))
    adapter = job.adapter
    if adapter is not None and adapter.path is not None:
        adapter = replace(adapter, path=_expand_home(adapter.path))
    return replace(
        job,
        adapter=adapter,
        model=_expand_home(job.model),
        tokenizer=job.tokenizer and _expand_home(job.tokenizer),
        data=tuple(map(_expand_part, job.data)),
        validation=tuple(map(_expand_part, job.validation)),
        output_dir=_expand_home(job.output_dir),
        resume=_expand_home(job.resume),
    )


def _expand_part(part: DataPart) -> DataPart:
    return replace(part, shards=_expand_home(part.shards), bins=_expand_home(part.bins))


def _expand_home(path: str) -> str:
    return str(Path(path).expanduser()) if path.startswith("~/") else path
