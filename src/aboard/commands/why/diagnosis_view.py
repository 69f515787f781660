"""Codes explained on a terminal: one of them, the list of all, and which were meant by a word."""

import re
from collections.abc import Sequence
from types import ModuleType

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.shared.labelled_text import wrap_labelled
from aboard.commands.shared.status_marks import SEVERITY_MARKS
from aboard.core.probes.check_subject import Subject
from aboard.diagnoses import Diagnosis, Mistake
from aboard.diagnoses.catalogue import list_diagnoses
from aboard.diagnoses.files import file_fetch, file_sync, local_files
from aboard.diagnoses.fixes import FixCommand, FixTemplate, name_blanks
from aboard.diagnoses.nodes import agent_protocol, trust
from aboard.diagnoses.runs import checkpoint_copies, death
from aboard.diagnoses.slurm import allocation, remote_runs, submission
from aboard.diagnoses.usage import (
    captured_scripts,
    commands,
    configuration,
    environment_sync,
    messages,
    pasted_commands,
    planning,
    run_records,
    sandbox,
)
from aboard.doctor.container import diagnoses as containers, image_diagnoses as container_images
from aboard.doctor.external_jobs import diagnoses as external_jobs
from aboard.doctor.hang import diagnoses as hang
from aboard.doctor.logs import (
    collective_messages as collectives,
    diagnoses as undetermined,
    launcher_messages as job_launchers,
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
    every = (each for family in families for each in list_diagnoses(family))
    told = tuple(each for each in every if each not in TRAIN.diagnoses and not isinstance(each, Mistake))
    return Subject(name=name, title=title, probes=(), rules=(), diagnoses=told, asked=asked)


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
    _build_subject("env", "every node has the head's Python environment", "aboard sync --env", environment_sync),
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
    _build_subject("notify", "messages about runs arrive", "aboard check", messages),
    _build_subject("sandbox", "the practice cluster works", "aboard sandbox", sandbox),
)


# Errors of more than one command have no command that looks for them.
ANY_COMMAND = "aboard"
# A line up to its remark; no match if the line is a remark.
_COMMAND = re.compile(r"^[^#].*?(?= +# |$)")


class DiagnosisView:
    """Title, symptoms, why, fix. Print it with `crop=False`, so that long commands are not cut."""

    def __init__(self, subject: Subject, diagnosis: Diagnosis) -> None:
        self._subject = subject
        self._diagnosis = diagnosis

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        diagnosis, width = self._diagnosis, options.max_width
        mark = SEVERITY_MARKS[diagnosis.severity]
        head = Text.assemble((f"{mark.sign} {diagnosis.code}", mark.style), "  ")
        yield from wrap_labelled(head, diagnosis.title, width, indent=2, style="bold")
        yield ""
        label = "  symptoms  "
        for symptom in diagnosis.symptoms:
            yield from wrap_labelled(Text(label, style="dim"), symptom, width)
            label = " " * len(label)
        yield from wrap_labelled(Text("  why       ", style="dim"), name_blanks(diagnosis.explanation), width)
        remedy = diagnosis.remedy or "\n".join(map(_format_step, diagnosis.steps))
        yield from wrap_labelled(Text("  fix       ", style="dim"), remedy, width)
        if diagnosis.leads_to:
            yield from wrap_labelled(Text("  leads to  ", style="dim"), ", ".join(diagnosis.leads_to), width)
        if self._subject.command != ANY_COMMAND:
            yield ""
            again = "checks again" if self._subject.is_check else "shows this verdict again"
            yield Text(f"  {self._subject.command}    # {again}", style="dim")


def _format_step(step: FixTemplate) -> str:
    """A command in backticks, which keep it unbroken, followed by its remark; advice as it is."""
    return _COMMAND.sub(r"`\g<0>`", step.text, count=1) if isinstance(step, FixCommand) else step.text


class CodeListView:
    """All codes with their titles, by subject."""

    def __init__(self, subjects: Sequence[Subject]) -> None:
        self._subjects = [subject for subject in subjects if subject.diagnoses]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widest = max((len(diagnosis.code) for subject in self._subjects for diagnosis in subject.diagnoses), default=0)
        for subject in self._subjects:
            yield Text.assemble((subject.name, "bold"), f"  {subject.title}")
            for diagnosis in subject.diagnoses:
                mark = SEVERITY_MARKS[diagnosis.severity]
                label = Text.assemble((f"  {mark.sign} ", mark.style), diagnosis.code.ljust(widest), "  ")
                yield from wrap_labelled(label, diagnosis.title, options.max_width)
            yield ""
        yield Text("aboard why CODE    # explains a code", style="dim")
