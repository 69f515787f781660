"""The long story of a code on a terminal, and the list of all codes."""

import re
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.core.rule import Subject
from aboard.diagnoses import Diagnosis
from aboard.diagnoses.fixes import Command, Template, name_blanks
from aboard.ui.hanging import hanging
from aboard.ui.marks import OF_SEVERITY

# A line up to its remark; none, if it is one.
_COMMAND = re.compile(r"^[^#].*?(?= +# |$)")


class StoryView:
    """Title, how it shows, why, how to mend it. Print it with `crop=False`: commands are as long as they are."""

    def __init__(self, subject: Subject, story: Diagnosis) -> None:
        self._subject = subject
        self._story = story

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        story, width = self._story, options.max_width
        mark = OF_SEVERITY[story.severity]
        head = Text.assemble((f"{mark.sign} {story.code}", mark.style), "  ")
        yield from hanging(head, story.title, width, indent=2, style="bold")
        yield ""
        label = "  shows  "
        for shown in story.symptoms:
            yield from hanging(Text(label, style="dim"), shown, width)
            label = " " * len(label)
        yield from hanging(Text("  why    ", style="dim"), name_blanks(story.explanation), width)
        remedy = story.remedy or "\n".join(map(_show_step, story.steps))
        yield from hanging(Text("  mend   ", style="dim"), remedy, width)
        if story.leads_to:
            yield from hanging(Text("  then also  ", style="dim"), ", ".join(story.leads_to), width)
        yield ""
        yield Text(f"  {self._subject.command}    # asks again", style="dim")


def _show_step(step: Template) -> str:
    """A command between backticks, where it isn't broken, with its remark behind them; or a piece of advice."""
    return _COMMAND.sub(r"`\g<0>`", step.text, count=1) if isinstance(step, Command) else step.text


class CodesView:
    """Every code by its subject, each with its title."""

    def __init__(self, subjects: Sequence[Subject]) -> None:
        self._subjects = [subject for subject in subjects if subject.stories]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widest = max((len(story.code) for subject in self._subjects for story in subject.stories), default=0)
        for subject in self._subjects:
            yield Text.assemble((subject.name, "bold"), f"  {subject.title}")
            for story in subject.stories:
                mark = OF_SEVERITY[story.severity]
                label = Text.assemble((f"  {mark.sign} ", mark.style), story.code.ljust(widest), "  ")
                yield from hanging(label, story.title, options.max_width)
            yield ""
        yield Text("aboard why CODE    # the whole story of one", style="dim")
