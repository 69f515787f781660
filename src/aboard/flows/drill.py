"""Runs exercises: sends each round of a script to its nodes, and the replies back into the script."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from aboard.core.exercise import Ask, Exercise, Replies, Round
from aboard.core.facts import Facts, Unknown
from aboard.diagnoses import WireError
from aboard.wires.link import Link

BEAT_SECONDS = 5.0


async def drill(
    exercise: Exercise[Any],
    facts: Facts,
    links: Mapping[str, Link],
    *,
    on_round: Callable[[int, Collection[str]], None] = lambda _number, _nodes: None,
    on_reply: Callable[[str], None] = lambda _node: None,
) -> Facts:
    """The facts with the exercise's outcome; a script that stumbles over a node's reply leaves an Unknown."""
    script = exercise.script(facts)
    outcome: Any
    beating = asyncio.create_task(_beat(links))
    try:
        asked = next(script)
        for number in count(1):
            on_round(number, asked.keys())
            asked = script.send(await _round(asked, links, on_reply))
    except StopIteration as done:
        outcome = done.value
    except Exception as error:  # noqa: BLE001 - what a node sends must not end the check of the others
        outcome = Unknown(why=f"the exercise stumbled over an answer: {type(error).__name__}")
    finally:
        beating.cancel()
    return replace(facts, outcomes={**facts.outcomes, exercise.name: outcome})


async def _beat(links: Mapping[str, Link]) -> None:
    """An agent that hears nothing ends itself: a long round must not pass for a head that is gone."""
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        await asyncio.gather(*(_ask(link, Ask(op="ping", within=BEAT_SECONDS)) for link in links.values()))


async def _round(asked: Round, links: Mapping[str, Link], on_reply: Callable[[str], None]) -> Replies:
    """All of a round's asks at once; a node that doesn't answer is an Unknown, and the others go on."""

    async def told(name: str, ask: Ask) -> Mapping[str, Any] | Unknown:
        reply = await _ask(links.get(name), ask)
        on_reply(name)
        return reply

    replies = await asyncio.gather(*(told(name, ask) for name, ask in asked.items()))
    return dict(zip(asked, replies, strict=True))


async def _ask(link: Link | None, ask: Ask) -> Mapping[str, Any] | Unknown:
    if link is None:
        return Unknown(why="it was not reached")
    try:
        return await link.ask(ask.op, ask.within, **ask.fields)
    except WireError as error:
        return Unknown(why=error.seen)
