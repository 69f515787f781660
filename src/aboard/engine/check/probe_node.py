"""Probes one node: connects, measures its clock offset and runs every probe. Its replies are untrusted."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from time import monotonic, time
from typing import Any, TypeVar

from aboard.agent.frames import FrameError
from aboard.core.cluster.contact import Contact, ReachedNode, UnreachedNode
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Unknown, parse_answer
from aboard.core.probes.probe import CommandOutput, FileContents, Probe, ProbeCommand, ProbeFiles, ProbeParseError
from aboard.core.probes.rank_environment import (
    RankEnvironment,
    RankSpec,
    build_environment_query,
    move_workdir,
    parse_environment,
)
from aboard.core.text.input_text import decode_latin1
from aboard.diagnoses import AgentRequestError, TransportError, Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import Untrusted, escape_text
from aboard.engine.check.run_multi_node_probe import send_heartbeats
from aboard.lazy_dataclass import dataclass
from aboard.transport.agent_link import QUOTE_CHARS, AgentLink
from aboard.transport.node_dialer import DialResult, NodeDialer
from aboard.transport.supervisor_messages import parse_clock
from aboard.transport.transport import OnPhase

# A connected agent replies at once; one that doesn't is stopped, swapping or hostile.
ANSWER_SECONDS = 10.0
PINGS = 3

OnAnswer = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ProbedNode:
    """The contact, each probe's fact (a value or Unknown) by name, and the open link, if any.

    `node` has the interpreter that was chosen for its ranks from `environment`.
    """

    node: Node
    contact: Contact
    environment: RankEnvironment | Unknown | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    dialled: DialResult | None = None


async def probe_node(
    dialer: NodeDialer,
    node: Node,
    probes: Sequence[Probe[Any]],
    *,
    spec: RankSpec | None = None,
    on_phase: OnPhase = lambda _phase: None,
    on_met: Callable[[], None] = lambda: None,
    on_contact: Callable[[DialResult, ReachedNode], None] = lambda _dialled, _contact: None,
    on_answer: OnAnswer = lambda _probe: None,
) -> ProbedNode:
    """Never raises because of a node: every failure becomes an UnreachedNode contact."""
    began = monotonic()
    environment: RankEnvironment | Unknown | None = None
    try:
        dialled = await dialer.dial(node, on_phase)
        on_met()
        meeting = asyncio.create_task(_measure_clock(dialled, on_contact))
        try:
            if spec is not None:
                environment = await _ask_environment(dialled.link, node, spec)
                if isinstance(environment, RankEnvironment):
                    node = move_workdir(replace(node, interpreter=environment.interpreter), environment.folder)
            own = [replace(probe, question=probe.question_for(node)) for probe in probes]
            asking = asyncio.create_task(_ask_probes(dialled.link, own, on_answer))
            await _wait_all(meeting, asking)
        except BaseException:
            meeting.cancel()
            await asyncio.gather(meeting, return_exceptions=True)
            await dialled.link.close()
            raise
    except TransportError as error:
        return ProbedNode(
            node=node,
            contact=UnreachedNode(
                reason=error.reason,
                # A contact is always shown with its node's name.
                said=escape_text(error.seen.removeprefix(f"{node.name}: "), QUOTE_CHARS),
                phase=error.detail,
                seconds=monotonic() - began,
            ),
        )
    return ProbedNode(
        node=node, contact=meeting.result(), environment=environment, facts=asking.result(), dialled=dialled
    )


async def _ask_environment(link: AgentLink, node: Node, spec: RankSpec) -> RankEnvironment | Unknown:
    """Chooses the interpreter of a node's ranks, which all other probes use."""
    fields: dict[str, Any] = build_environment_query(node, spec)
    try:
        reply = await link.ask("environment", ANSWER_SECONDS, timeout=ANSWER_SECONDS / 2, **fields) if fields else {}
        return parse_environment(node, spec, reply)
    except (AgentRequestError, ProbeParseError) as error:
        return Unknown(why=str(error))


async def _wait_all(*tasks: asyncio.Task[Any]) -> None:
    """Waits for all tasks; unlike gather, cancels the others if one fails or on cancellation."""
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _measure_clock(result: DialResult, on_contact: Callable[[DialResult, ReachedNode], None]) -> ReachedNode:
    """Measures the clock offset by the shortest of a few round trips, which has the least error."""
    link = result.link
    best = (float("inf"), 0.0)
    for _ in range(PINGS):
        sent, sent_wall = monotonic(), time()
        pong = await link.ask("ping", ANSWER_SECONDS)
        trip = monotonic() - sent
        best = min(best, (trip, _parse_clock(pong) - (sent_wall + trip / 2)))
    contact = ReachedNode(
        hostname=_clean_text(link.hello.get("hostname")),
        user=_clean_text(link.hello.get("user")),
        address=Untrusted(_clean_text(link.hello.get("address"))).as_address() or "",
        python=_clean_text(link.hello.get("python")),
        round_trip=best[0],
        clock_offset=best[1],
        phases={**link.ending.phases, "agent": result.seconds},
        drops=result.drops,
        noise=link.noise,
    )
    on_contact(result, contact)
    return contact


async def _ask_probes(link: AgentLink, probes: Sequence[Probe[Any]], on_answer: OnAnswer) -> dict[str, Any]:
    """Reads all files in one request and runs the commands in parallel; reports each probe once, on its reply."""
    files = {probe.name: probe.question for probe in probes if isinstance(probe.question, ProbeFiles)}
    commands = {probe.name: probe.question for probe in probes if isinstance(probe.question, ProbeCommand)}

    async def report_answer(names: Iterable[str], answer: Awaitable[T]) -> T:
        value = await answer
        for name in names:
            on_answer(name)
        return value

    reading = asyncio.create_task(report_answer(files, _read_files(link, tuple(files.values()))))
    running = {
        name: asyncio.create_task(report_answer([name], _run_command(link, command)))
        for name, command in commands.items()
    }
    # A container may take minutes to start.
    beating = asyncio.create_task(send_heartbeats({"": link}))
    try:
        await _wait_all(reading, *running.values())
    finally:
        beating.cancel()
    contents = reading.result()
    facts: dict[str, Any] = {}
    for probe in probes:
        if probe.name in running:
            answer: CommandOutput | FileContents | Unknown = running[probe.name].result()
        else:
            answer = contents if isinstance(contents, Unknown) else _select_files(contents, files[probe.name])
        facts[probe.name] = answer if isinstance(answer, Unknown) else parse_answer(probe, answer)
    return facts


async def _read_files(link: AgentLink, questions: Sequence[ProbeFiles]) -> FileContents | Unknown:
    if not questions:
        return FileContents(files={})
    globs = sorted({glob for question in questions for glob in question.globs})
    limit = max(question.limit for question in questions)
    try:
        reply = await link.ask("read", ANSWER_SECONDS, globs=globs, limit=limit, timeout=ANSWER_SECONDS / 2)
    except AgentRequestError as error:
        # The agent is up and reports why it can't: that is a reply, not a failed contact.
        return Unknown(why=error.seen)
    files = reply.get("files")
    if not isinstance(files, dict):
        return Unknown(why="reading files timed out; a mount may be dead")
    return FileContents(files={str(path): decode_latin1(content) for path, content in files.items()})


async def _run_command(link: AgentLink, command: ProbeCommand) -> CommandOutput | Unknown:
    within = command.timeout + ANSWER_SECONDS
    try:
        reply = await link.ask("run", within, **command.describe())
    except AgentRequestError as error:
        return Unknown(why=error.seen)
    code = reply.get("code")
    if not isinstance(code, int):
        return Unknown(why="the node sent an invalid reply")
    return CommandOutput(
        code=code,
        stdout=decode_latin1(reply.get("stdout")),
        stderr=decode_latin1(reply.get("stderr")),
        timed_out=bool(reply.get("timed_out")),
    )


def _select_files(contents: FileContents, question: ProbeFiles) -> FileContents:
    """The files that this probe requested."""
    wanted = [glob.split("*") for glob in question.globs]
    own = {path: text for path, text in contents.files.items() if any(_is_match(path, parts) for parts in wanted)}
    return FileContents(files=own)


def _is_match(path: str, parts: list[str]) -> bool:
    if len(parts) == 1:
        return path == parts[0]
    return path.startswith(parts[0]) and path.endswith(parts[-1])


def _clean_text(value: object) -> str:
    """Short printable text from a node, safe for a terminal."""
    return "".join(letter for letter in value[:80] if letter.isprintable()) if isinstance(value, str) else ""


def _parse_clock(pong: Mapping[str, Any]) -> float:
    try:
        return parse_clock(pong.get("wall"))
    except FrameError as error:
        raise Unreachable(UnreachableReason.GARBAGE, str(error)) from None
