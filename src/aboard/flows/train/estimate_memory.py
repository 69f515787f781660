"""What a rank will need of memory: asked of the trainer's own arithmetic, before there are ranks."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from aboard.checks.train.training_rules import RankMemoryNeeds
from aboard.core.decoding import DecodeError, decode
from aboard.core.plan.training_settings import Training
from aboard.diagnoses import AboardError
from aboard.diagnoses.trainer import training as failures
from aboard.flows.train.trainer_process import TrainerProcess

MODULE = "aboard.train.memory.worker"
# To import torch and to build a model without its weights, on a busy head.
SECONDS = 120.0


async def estimate_memory(
    trainer: TrainerProcess, training: Training, model: Path, ranks: Mapping[str, int], room: int | None
) -> RankMemoryNeeds:
    """On so many ranks of each node; `room` is the least that any of them has, or None."""
    # It reads the model's config here, where the head has it, and by whichever name.
    here = replace(training, model=str(model))
    answer = await trainer.ask({"training": asdict(here), "ranks": dict(ranks), "memory": room}, SECONDS)
    try:
        return decode(RankMemoryNeeds, answer, strict=True)
    except DecodeError as error:
        seen = f"{MODULE} told something else than what is needed: {error}"
        raise AboardError(failures.ASKED, seen, "report") from None
