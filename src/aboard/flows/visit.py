"""One visit to one node: dial it, meet it, ask it every probe's question. What it answers is data, never trusted."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from time import monotonic, time
from typing import Any, TypeVar

from aboard.agent.frames import FrameError
from aboard.core.facts import Unknown, read
from aboard.core.node import Node
from aboard.core.probe import Command, Contents, Files, Output, Probe, Unparsed
from aboard.core.rank_environment import RankEnvironment, RankSpec, environment_question, read_environment
from aboard.core.reach import Contact, Reached, Unreached
from aboard.core.words import carried, visible
from aboard.diagnoses import AskError, Unreachable, WireError
from aboard.diagnoses.reason import Reason
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy import dataclass
from aboard.wires.fleet import Dialled, Fleet
from aboard.wires.link import SAID, Link
from aboard.wires.told import clock_of

# An agent that has said hello answers at once; one that doesn't is stopped, swapping or hostile.
ANSWER_SECONDS = 10.0
PINGS = 3

OnAnswer = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Visit:
    """How contact went, each probe's fact (a value or Unknown) by its name, and the open link, if any.

    `node` has the interpreter that was chosen for its ranks, by what `environment` says.
    """

    node: Node
    contact: Contact
    environment: RankEnvironment | Unknown | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    dialled: Dialled | None = None


async def visit(
    fleet: Fleet,
    node: Node,
    probes: Sequence[Probe[Any]],
    *,
    spec: RankSpec | None = None,
    on_met: Callable[[], None] = lambda: None,
    on_contact: Callable[[Dialled, Reached], None] = lambda _dialled, _contact: None,
    on_answer: OnAnswer = lambda _probe: None,
) -> Visit:
    """Never raises for what a node does: each way to fail is a contact that says so."""
    began = monotonic()
    environment: RankEnvironment | Unknown | None = None
    try:
        dialled = await fleet.dial(node)
        on_met()
        meeting = asyncio.create_task(_meet(dialled, on_contact))
        try:
            if spec is not None:
                environment = await _ask_environment(dialled.link, node, spec)
                if isinstance(environment, RankEnvironment):
                    node = replace(node, interpreter=environment.interpreter)
            own = [replace(probe, question=probe.asked(node)) for probe in probes]
            asking = asyncio.create_task(_ask_all(dialled.link, own, on_answer))
            await _together(meeting, asking)
        except BaseException:
            meeting.cancel()
            await asyncio.gather(meeting, return_exceptions=True)
            await dialled.link.close()
            raise
    except WireError as error:
        return Visit(
            node=node,
            contact=Unreached(
                reason=error.reason,
                # Whoever reads a contact knows whose it is.
                said=visible(error.seen.removeprefix(f"{node.name}: "), SAID),
                phase=error.detail,
                seconds=monotonic() - began,
            ),
        )
    return Visit(node=node, contact=meeting.result(), environment=environment, facts=asking.result(), dialled=dialled)


async def _ask_environment(link: Link, node: Node, spec: RankSpec) -> RankEnvironment | Unknown:
    """Chooses the interpreter of a node's ranks, by which all other questions are asked."""
    fields: dict[str, Any] = environment_question(node, spec)
    try:
        reply = await link.ask("environment", ANSWER_SECONDS, timeout=ANSWER_SECONDS / 2, **fields) if fields else {}
        return read_environment(node, spec, reply)
    except (AskError, Unparsed) as error:
        return Unknown(why=str(error))


async def _together(*tasks: asyncio.Task[Any]) -> None:
    """Waits for all; when one fails, or we are cancelled, the others aren't left running as gather leaves them."""
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _meet(dialled: Dialled, on_contact: Callable[[Dialled, Reached], None]) -> Reached:
    """The shortest of a few round trips gives the clock's offset with the least doubt."""
    link = dialled.link
    best = (float("inf"), 0.0)
    for _ in range(PINGS):
        sent, sent_wall = monotonic(), time()
        pong = await link.ask("ping", ANSWER_SECONDS)
        trip = monotonic() - sent
        best = min(best, (trip, _clock(pong) - (sent_wall + trip / 2)))
    contact = Reached(
        hostname=_word(link.hello.get("hostname")),
        user=_word(link.hello.get("user")),
        address=Untrusted(_word(link.hello.get("address"))).as_address() or "",
        python=_word(link.hello.get("python")),
        round_trip=best[0],
        clock_offset=best[1],
        phases={**link.ending.phases, "agent": dialled.seconds},
        drops=dialled.drops,
        noise=link.noise,
    )
    on_contact(dialled, contact)
    return contact


async def _ask_all(link: Link, probes: Sequence[Probe[Any]], on_answer: OnAnswer) -> dict[str, Any]:
    """All files in one question, the commands side by side; each probe is told of once, when its answer is in."""
    files = {probe.name: probe.question for probe in probes if isinstance(probe.question, Files)}
    commands = {probe.name: probe.question for probe in probes if isinstance(probe.question, Command)}

    async def told(names: Iterable[str], answer: Awaitable[T]) -> T:
        given = await answer
        for name in names:
            on_answer(name)
        return given

    reading = asyncio.create_task(told(files, _read(link, tuple(files.values()))))
    running = {name: asyncio.create_task(told([name], _run(link, command))) for name, command in commands.items()}
    await _together(reading, *running.values())
    contents = reading.result()
    facts: dict[str, Any] = {}
    for probe in probes:
        if probe.name in running:
            answer: Output | Contents | Unknown = running[probe.name].result()
        else:
            answer = contents if isinstance(contents, Unknown) else _own(contents, files[probe.name])
        facts[probe.name] = answer if isinstance(answer, Unknown) else read(probe, answer)
    return facts


async def _read(link: Link, questions: Sequence[Files]) -> Contents | Unknown:
    if not questions:
        return Contents(files={})
    globs = sorted({glob for question in questions for glob in question.globs})
    limit = max(question.limit for question in questions)
    try:
        reply = await link.ask("read", ANSWER_SECONDS, globs=globs, limit=limit, timeout=ANSWER_SECONDS / 2)
    except AskError as error:
        # The agent is there and says why it can't: that is the answer, not a failure to reach it.
        return Unknown(why=error.seen)
    given = reply.get("files")
    if not isinstance(given, dict):
        return Unknown(why="reading did not end in time: a mount there may be dead")
    return Contents(files={str(path): carried(content) for path, content in given.items()})


async def _run(link: Link, command: Command) -> Output | Unknown:
    within = command.timeout + ANSWER_SECONDS
    try:
        source: dict[str, Any] = {} if command.source is None else {"source": command.source}
        reply = await link.ask("run", within, argv=list(command.argv), timeout=command.timeout, **source)
    except AskError as error:
        return Unknown(why=error.seen)
    code = reply.get("code")
    if not isinstance(code, int):
        return Unknown(why="an answer that is none")
    return Output(
        code=code,
        stdout=carried(reply.get("stdout")),
        stderr=carried(reply.get("stderr")),
        timed_out=bool(reply.get("timed_out")),
    )


def _own(contents: Contents, question: Files) -> Contents:
    """Of all files that were read, those that this probe asked for."""
    wanted = [glob.split("*") for glob in question.globs]
    own = {path: text for path, text in contents.files.items() if any(_fits(path, parts) for parts in wanted)}
    return Contents(files=own)


def _fits(path: str, parts: list[str]) -> bool:
    if len(parts) == 1:
        return path == parts[0]
    return path.startswith(parts[0]) and path.endswith(parts[-1])


def _word(given: object) -> str:
    """A short printable word from a node: it goes to a screen."""
    return "".join(letter for letter in given[:80] if letter.isprintable()) if isinstance(given, str) else ""


def _clock(pong: Mapping[str, Any]) -> float:
    try:
        return clock_of(pong.get("wall"))
    except FrameError as error:
        raise Unreachable(Reason.GARBAGE, str(error)) from None
