"""`aboard why`."""

import click
from rich.console import Console

from aboard.core.errors import InputError, Problem
from aboard.core.words import nearest, visible
from aboard.ui.story import CodesView, StoryView
from aboard.verdicts import TOLD


@click.command()
@click.argument("code", required=False)
def why(code: str | None) -> None:
    """Tell the long story of a finding's CODE: how it shows, why it happens, how to mend it.

    Without a CODE, list all that can be found.
    """
    console = Console(highlight=False)
    if code is None:
        console.print(CodesView(TOLD), crop=False)
        return
    stories = {story.code: (subject, story) for subject in TOLD for story in subject.stories}
    if code not in stories:
        near = nearest(code, stories)
        fix = f"aboard why {near}    # did you mean this?" if near else "aboard why    # lists all codes"
        raise InputError("why-code", [Problem(where="aboard why", seen=f"no code '{visible(code)}'", fix=fix)])
    console.print(StoryView(*stories[code]), crop=False)
