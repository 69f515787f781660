"""The docs pages of all codes and their index, as Markdown; the same content as `aboard why CODE`."""

from collections.abc import Mapping, Sequence

from aboard.core.probes.check_subject import Subject
from aboard.diagnoses import Diagnosis, Severity
from aboard.diagnoses.fixes import name_blanks

# The index links to these pages, and 460 of them are too many for the site's navigation.
_ORPHAN = "---\norphan: true\n---"
_CHECK_MEANS = {
    Severity.BLOCK: "`block`: it would stop a run, so a launch is refused.",
    Severity.WARN: "`warn`: a run may fail or be slow; a launch continues.",
    Severity.INFO: "`info`: worth knowing.",
}
_RUN_MEANS = {
    **_CHECK_MEANS,
    Severity.BLOCK: "`block`: the run has failed, or makes no progress.",
    Severity.WARN: "`warn`: the run goes on, but is slow or may fail.",
}
_COMMAND_MEANS = {
    **_CHECK_MEANS,
    Severity.BLOCK: "`block`: the command stops, and nothing is started.",
    Severity.WARN: "`warn`: the command continues.",
}
# The subjects that are diagnosed in a run and its output, after the launch.
_OF_RUNS = ("run", "log")


def build_pages(subjects: Sequence[Subject]) -> Mapping[str, str]:
    """The pages by file name."""
    diagnoses = [(subject, diagnosis) for subject in subjects for diagnosis in subject.diagnoses]
    code_pages = {f"{diagnosis.code}.md": _build_page(subject, diagnosis) for subject, diagnosis in diagnoses}
    return {"index.md": _build_index(subjects), **code_pages}


def _build_page(subject: Subject, diagnosis: Diagnosis) -> str:
    means = _CHECK_MEANS if subject.is_check else _RUN_MEANS if subject.name in _OF_RUNS else _COMMAND_MEANS
    symptoms = "\n".join(diagnosis.symptoms)
    remedy = diagnosis.remedy or "\n".join(("```text", *(step.text for step in diagnosis.steps), "```"))
    links = ", ".join(f"[{code}]({code}.md)" for code in diagnosis.leads_to)
    leads_to = f"\nThis finding leads to {links}, which the same fix removes.\n" if links else ""
    return f"""\
{_ORPHAN}

# {diagnosis.code}: {diagnosis.title}

At worst {means[diagnosis.severity]} Found by `{subject.command}`.

## Symptoms

```text
{symptoms}
```

## Why

{name_blanks(diagnosis.explanation)}

## Fix

{remedy}
{leads_to}
[All codes](index.md)
"""


def _build_index(subjects: Sequence[Subject]) -> str:
    intro = "The findings of `aboard check`, of runs and of `aboard data`, and the errors of commands."
    parts = ["# Codes", f"{intro} `aboard why CODE` shows the same page in the terminal."]
    for subject in subjects:
        if subject.diagnoses:
            rows = [
                f"| [{s.code}]({s.code}.md) | {s.severity.word} | {_escape_cell(s.title)} |" for s in subject.diagnoses
            ]
            parts += [
                f"## {subject.name}",
                f"{subject.title[:1].upper()}{subject.title[1:]}.",
                "\n".join(["| code | at worst | |", "|---|---|---|", *rows]),
            ]
    return "\n\n".join(parts) + "\n"


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|")
