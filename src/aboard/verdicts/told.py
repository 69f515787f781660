"""Every code that can be met, by subject: of checks, of a run's end, of logs, of the data, and of errors."""

from types import ModuleType

from aboard.checks import SUBJECTS
from aboard.checks.train import TRAIN
from aboard.core.rule import Subject
from aboard.diagnoses import (
    checkpoint,
    commands,
    configuration,
    data,
    data_quality,
    death,
    foreign,
    hang,
    logs,
    logs_collectives,
    logs_jobs,
    logs_programs,
    loss,
    model,
    nccl_ras,
    paste,
    planning,
    records,
    rendezvous,
    sandbox,
    slow,
    spread,
    training,
    transport,
)
from aboard.diagnoses.catalogue import diagnoses_in


def _subject(name: str, title: str, asked: str, *families: ModuleType) -> Subject:
    """A subject as the checks have them, so that every code has its page in one way."""
    stories = tuple(each for family in families for each in diagnoses_in(family) if each not in TRAIN.stories)
    return Subject(name=name, title=title, probes=(), rules=(), stories=stories, asked=asked)


TOLD: tuple[Subject, ...] = (
    *SUBJECTS,
    _subject(
        *("run", "every rank came to a good end", "aboard launch -- SCRIPT"),
        *(death, hang, rendezvous, slow, loss, nccl_ras, foreign),
    ),
    _subject(
        *("log", "logs of any launcher, explained", "aboard why --log FILE"),
        *(logs, logs_collectives, logs_jobs, logs_programs),
    ),
    _subject("data", "rows can be learned from as they are", "aboard data FILE…", data_quality),
    TRAIN,
    _subject("training", "a training begins, and goes on", "aboard train", training),
    _subject("model", "every rank can load the model", "aboard train", model),
    _subject("checkpoint", "what was trained is kept, found again and handed over", "aboard train", checkpoint),
    _subject("spread", "every node has the files that ranks read", "aboard train", spread),
    _subject("preparing", "data can be read and prepared", "aboard data FILE…", data),
    _subject("files", "aboard.yaml and other files can be obeyed", "aboard", configuration),
    _subject("commands", "what was typed can be obeyed", "aboard", commands, planning, paste),
    _subject("runs", "a run can be found, told of and ended", "aboard", records, transport),
    _subject("sandbox", "there is a practice cluster", "aboard sandbox", sandbox),
)
