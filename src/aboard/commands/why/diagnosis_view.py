"""Codes explained on a terminal: one of them, the list of all, and which were meant by a word."""

import re
from collections.abc import Sequence
from importlib import import_module

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.shared.labelled_text import wrap_labelled
from aboard.commands.shared.status_marks import SEVERITY_MARKS
from aboard.core.probes.check_subject import Subject
from aboard.diagnoses import Diagnosis, Mistake
from aboard.diagnoses.catalogue import ANY_COMMAND, TOPICS, Topic, list_diagnoses
from aboard.diagnoses.fixes import FixCommand, FixTemplate, name_blanks
from aboard.doctor.subjects import SUBJECTS
from aboard.trainer.checks.subject import TRAIN


def _build_subject(topic: Topic) -> Subject:
    """A subject like those of the checks, so that every code's page is generated in the same way."""
    if (declared := _DECLARED.get(topic.name)) is not None:
        return declared
    every = (each for family in topic.families for each in list_diagnoses(import_module(f"aboard.{family}")))
    told = tuple(each for each in every if each not in TRAIN.diagnoses and not isinstance(each, Mistake))
    return Subject(name=topic.name, title=topic.title, probes=(), rules=(), diagnoses=told, asked=topic.command)


_DECLARED = {subject.name: subject for subject in (*SUBJECTS, TRAIN)}
ALL_SUBJECTS = tuple(map(_build_subject, TOPICS))

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
