"""Every diagnosis code by subject: checks, runs, logs, data, and errors."""

from types import ModuleType

from aboard.core.probes.check_subject import Subject
from aboard.diagnoses.catalogue import list_diagnoses
from aboard.diagnoses.files import file_fetch, file_sync, local_files
from aboard.diagnoses.nodes import agent_protocol, trust
from aboard.diagnoses.runs import checkpoint_copies, death
from aboard.diagnoses.slurm import allocation, remote_runs, submission
from aboard.diagnoses.usage import (
    captured_scripts,
    commands,
    configuration,
    environment,
    pasted_commands,
    planning,
    run_records,
    sandbox,
)
from aboard.doctor.container import diagnoses as containers
from aboard.doctor.container import image_diagnoses as container_images
from aboard.doctor.external_jobs import diagnoses as external_jobs
from aboard.doctor.hang import diagnoses as hang
from aboard.doctor.logs import (
    collective_messages as collectives,
)
from aboard.doctor.logs import (
    diagnoses as undetermined,
)
from aboard.doctor.logs import (
    launcher_messages as job_launchers,
)
from aboard.doctor.logs import (
    program_messages as rank_programs,
)
from aboard.doctor.loss import diagnoses as loss
from aboard.doctor.nccl_ras import diagnoses as nccl_ras
from aboard.doctor.slow import diagnoses as slow
from aboard.doctor.start import diagnoses as rendezvous
from aboard.doctor.subjects import SUBJECTS
from aboard.trainer.checks.subject import TRAIN
from aboard.trainer.diagnoses import adapter, checkpoint, data, data_quality, model_loading, training


def _build_subject(name: str, title: str, asked: str, *families: ModuleType) -> Subject:
    """A subject like those of the checks, so that every code's page is generated in the same way."""
    diagnoses = tuple(each for family in families for each in list_diagnoses(family) if each not in TRAIN.diagnoses)
    return Subject(name=name, title=title, probes=(), rules=(), diagnoses=diagnoses, asked=asked)


ALL_SUBJECTS: tuple[Subject, ...] = (
    *SUBJECTS,
    _build_subject("trust", "this machine can log in to every node", "aboard trust", trust),
    _build_subject(
        *("run", "every rank exits successfully", "aboard why RUN"),
        *(death, container_images, containers, hang, rendezvous, slow, loss, nccl_ras, external_jobs),
    ),
    _build_subject(
        *("log", "logs from any launcher", "aboard why --log FILE"),
        *(undetermined, collectives, job_launchers, rank_programs),
    ),
    _build_subject("data", "the data is fit for training", "aboard data FILE…", data_quality),
    TRAIN,
    _build_subject("training", "the training starts and makes progress", "aboard train", training, adapter),
    _build_subject("model", "every rank can load the model", "aboard train", model_loading),
    _build_subject(
        "checkpoint", "checkpoints are saved, found and exported", "aboard train", checkpoint, checkpoint_copies
    ),
    _build_subject("spread", "every node has the files that ranks read", "aboard sync", file_sync),
    _build_subject("env", "every node has the head's Python environment", "aboard sync --env", environment),
    _build_subject("fetch", "files on the nodes can be copied here", "aboard export RUN --to DIR", file_fetch),
    _build_subject("preparing", "data can be read and prepared", "aboard data FILE…", data, local_files),
    _build_subject("files", "aboard.yaml and other files are valid", "aboard", configuration),
    _build_subject(
        *("commands", "commands and their arguments are valid", "aboard"),
        *(commands, planning, pasted_commands, captured_scripts, allocation, submission),
    ),
    _build_subject(
        "runs", "a run can be found, described and stopped", "aboard", run_records, remote_runs, agent_protocol
    ),
    _build_subject("sandbox", "the practice cluster works", "aboard sandbox", sandbox),
)
