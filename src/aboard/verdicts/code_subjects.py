"""Every code that can be met, by subject: of checks, of a run's end, of logs, of the data, and of errors."""

from types import ModuleType

from aboard.checks import SUBJECTS
from aboard.checks.train import TRAIN
from aboard.core.probes.check_subject import Subject
from aboard.diagnoses.catalogue import list_diagnoses
from aboard.diagnoses.nodes import agent_protocol
from aboard.diagnoses.program_logs import collectives, job_launchers, rank_programs, undetermined
from aboard.diagnoses.runs import death, external_jobs, hang, loss, nccl_ras, rendezvous, slow
from aboard.diagnoses.trainer import checkpoint, data, data_quality, file_sync, model, training
from aboard.diagnoses.usage import commands, configuration, pasted_commands, planning, run_records, sandbox


def _build_subject(name: str, title: str, asked: str, *families: ModuleType) -> Subject:
    """A subject as the checks have them, so that every code has its page in one way."""
    stories = tuple(each for family in families for each in list_diagnoses(family) if each not in TRAIN.diagnoses)
    return Subject(name=name, title=title, probes=(), rules=(), diagnoses=stories, asked=asked)


ALL_SUBJECTS: tuple[Subject, ...] = (
    *SUBJECTS,
    _build_subject(
        *("run", "every rank came to a good end", "aboard launch -- SCRIPT"),
        *(death, hang, rendezvous, slow, loss, nccl_ras, external_jobs),
    ),
    _build_subject(
        *("log", "logs of any launcher, explained", "aboard why --log FILE"),
        *(undetermined, collectives, job_launchers, rank_programs),
    ),
    _build_subject("data", "rows can be learned from as they are", "aboard data FILE…", data_quality),
    TRAIN,
    _build_subject("training", "a training begins, and goes on", "aboard train", training),
    _build_subject("model", "every rank can load the model", "aboard train", model),
    _build_subject("checkpoint", "what was trained is kept, found again and handed over", "aboard train", checkpoint),
    _build_subject("spread", "every node has the files that ranks read", "aboard train", file_sync),
    _build_subject("preparing", "data can be read and prepared", "aboard data FILE…", data),
    _build_subject("files", "aboard.yaml and other files can be obeyed", "aboard", configuration),
    _build_subject("commands", "what was typed can be obeyed", "aboard", commands, planning, pasted_commands),
    _build_subject("runs", "a run can be found, told of and ended", "aboard", run_records, agent_protocol),
    _build_subject("sandbox", "there is a practice cluster", "aboard sandbox", sandbox),
)
