"""`aboard why`."""

import os

import click
from rich.console import Console

from aboard.core.errors import AboardError, InputError, Problem
from aboard.core.words import nearest, visible
from aboard.flows.status import summary
from aboard.record.places import RunDirectory
from aboard.record.runs import Runs
from aboard.ui.findings import FindingsView
from aboard.ui.story import CodesView, StoryView
from aboard.verdicts.told import TOLD

STORIES = {story.code: (subject, story) for subject in TOLD for story in subject.stories}


@click.command()
@click.argument("what", required=False, metavar="[CODE|RUN]")
def why(what: str | None) -> None:
    """Tell the long story of a finding's CODE, or what a RUN came to and the story of that.

    Without either, list all codes.
    """
    console = Console(highlight=False)
    if what is None:
        console.print(CodesView(TOLD), crop=False)
    elif what in STORIES:
        console.print(StoryView(*STORIES[what]), crop=False)
    else:
        _tell_run(console, _run(what))


def _run(what: str) -> RunDirectory:
    try:
        return Runs.of(os.environ).find(what)
    except AboardError:
        near = nearest(what, STORIES)
        fix = f"aboard why {near}    # did you mean this?" if near else "aboard why    # lists all codes"
        seen = f"no code and no run '{visible(what)}'"
        raise InputError("why-code", [Problem(where="aboard why", seen=seen, fix=fix)]) from None


def _tell_run(console: Console, run: RunDirectory) -> None:
    told = summary(run)
    if not told.findings:
        click.echo(f"{run.id} is {told.state}, and nothing was found wrong with it")
        return
    console.print(FindingsView(told.findings, in_full=True), crop=False)
    code = told.findings[0].code
    if code in STORIES:
        console.print(StoryView(*STORIES[code]), crop=False)
