"""The pages of the docs: one for each code, and an index by subject; what `aboard why` tells, as Markdown."""

from collections.abc import Mapping, Sequence

from aboard.core.rule import Subject
from aboard.diagnoses import Diagnosis, Severity
from aboard.diagnoses.fixes import name_blanks

# The index links to these pages, and 460 of them are too many for the site's navigation.
_ORPHAN = "---\norphan: true\n---"
_MEANS = {
    Severity.BLOCK: "`block`: it would stop a run, and a launch is refused.",
    Severity.WARN: "`warn`: a run may go wrong, or slowly; a launch goes on.",
    Severity.INFO: "`info`: worth knowing.",
}


def pages(subjects: Sequence[Subject]) -> Mapping[str, str]:
    """All pages by file name."""
    stories = [(subject, story) for subject in subjects for story in subject.stories]
    told = {f"{story.code}.md": _page(subject, story) for subject, story in stories}
    aliases = {f"{alias}.md": _alias_page(alias, story) for _, story in stories for alias in story.aliases}
    return {"index.md": _index(subjects), **told, **aliases}


def _page(subject: Subject, story: Diagnosis) -> str:
    shows = "\n".join(story.symptoms)
    remedy = story.remedy or "\n".join(("```text", *(step.text for step in story.steps), "```"))
    links = ", ".join(f"[{code}]({code}.md)" for code in story.leads_to)
    leads_to = f"\nIt leads to {links}; mended, they are gone too.\n" if links else ""
    return f"""\
{_ORPHAN}

# {story.code}: {story.title}

At worst {_MEANS[story.severity]} Found by `{subject.command}`.

## How it shows

```text
{shows}
```

## Why

{name_blanks(story.explanation)}

## How to mend it

{remedy}
{leads_to}
[All codes](index.md)
"""


def _alias_page(alias: str, story: Diagnosis) -> str:
    return f"{_ORPHAN}\n\n# {alias}\n\nAnother name of [{story.code}]({story.code}.md): {story.title}.\n"


def _index(subjects: Sequence[Subject]) -> str:
    found = "What `aboard check`, a run and `aboard data` can find, and what a command can end with."
    parts = ["# Codes", f"{found} `aboard why CODE` tells the same story in the terminal."]
    for subject in subjects:
        if subject.stories:
            rows = [f"| [{s.code}]({s.code}.md) | {s.severity.word} | {_cell(s.title)} |" for s in subject.stories]
            parts += [
                f"## {subject.name}",
                f"{subject.title[:1].upper()}{subject.title[1:]}.",
                "\n".join(["| code | at worst | |", "|---|---|---|", *rows]),
            ]
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
