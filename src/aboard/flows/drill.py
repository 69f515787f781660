"""Runs exercises: sends each round of a script to its nodes, and the replies back into the script."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aboard.core.errors import WireError
from aboard.core.exercise import Ask, Exercise, Replies, Round
from aboard.core.facts import Facts, Unknown
from aboard.wires.link import Link


async def drill(exercise: Exercise[Any], facts: Facts, links: Mapping[str, Link]) -> Facts:
    """The facts with the exercise's outcome; a script that stumbles over a node's reply leaves an Unknown."""
    script = exercise.script(facts)
    outcome: Any
    try:
        asked = next(script)
        while True:
            asked = script.send(await _round(asked, links))
    except StopIteration as done:
        outcome = done.value
    except Exception as error:  # noqa: BLE001 - what a node sends must not end the check of the others
        outcome = Unknown(why=f"the exercise stumbled over an answer: {type(error).__name__}")
    return replace(facts, outcomes={**facts.outcomes, exercise.name: outcome})


async def _round(asked: Round, links: Mapping[str, Link]) -> Replies:
    """All of a round's asks at once; a node that doesn't answer is an Unknown, and the others go on."""
    replies = await asyncio.gather(*(_ask(links.get(name), ask) for name, ask in asked.items()))
    return dict(zip(asked, replies, strict=True))


async def _ask(link: Link | None, ask: Ask) -> Mapping[str, Any] | Unknown:
    if link is None:
        return Unknown(why="it was not reached")
    try:
        return await link.ask(ask.op, ask.within, **ask.fields)
    except WireError as error:
        return Unknown(why=error.seen)
