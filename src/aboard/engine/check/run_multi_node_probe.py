"""Runs multi-node probes: sends each round of a script to its nodes, and the replies back to the script."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import count
from secrets import token_hex
from typing import Any

from aboard.agent.network.peer_listener import TOKEN_BYTES
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.multi_node_probe import MultiNodeProbe, ProbeRequest, Replies, Round
from aboard.diagnoses import TransportError
from aboard.transport.agent_link import AgentLink

BEAT_SECONDS = 5.0
# Nodes listen and connect with the same token, which nobody else on their network has.
PEER_OPS = ("listen", "connect", "push")


async def run_multi_node_probe(
    probe: MultiNodeProbe[Any],
    facts: Facts,
    links: Mapping[str, AgentLink],
    *,
    on_round: Callable[[int, Collection[str]], None] = lambda _number, _nodes: None,
    on_reply: Callable[[str], None] = lambda _node: None,
) -> Facts:
    """The facts with the probe's outcome; Unknown if the script fails on a node's reply."""
    script = probe.script(facts)
    token = token_hex(TOKEN_BYTES // 2)
    outcome: Any
    beating = asyncio.create_task(send_heartbeats(links))
    try:
        requests = next(script)
        for number in count(1):
            on_round(number, requests.keys())
            requests = {name: _add_token(ask, token) for name, ask in requests.items()}
            requests = script.send(await _run_round(requests, links, on_reply))
    except StopIteration as done:
        outcome = done.value
    except Exception as error:  # noqa: BLE001 - a node's reply must not abort the check of the others
        outcome = Unknown(why=f"the probe could not process a reply: {type(error).__name__}")
    finally:
        beating.cancel()
    return replace(facts, outcomes={**facts.outcomes, probe.name: outcome})


def _add_token(request: ProbeRequest, token: str) -> ProbeRequest:
    return replace(request, fields={**request.fields, "token": token}) if request.op in PEER_OPS else request


async def send_heartbeats(links: Mapping[str, AgentLink]) -> None:
    """Keeps agents alive during a long round: an agent without messages assumes that the head is gone, and exits."""
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        await asyncio.gather(
            *(_ask_node(link, ProbeRequest(op="ping", within=BEAT_SECONDS)) for link in links.values())
        )


async def _run_round(requests: Round, links: Mapping[str, AgentLink], on_reply: Callable[[str], None]) -> Replies:
    """Sends all requests of a round in parallel; a node without a reply is Unknown, and the others continue."""

    async def ask_and_report(name: str, request: ProbeRequest) -> Mapping[str, Any] | Unknown:
        reply = await _ask_node(links.get(name), request)
        on_reply(name)
        return reply

    replies = await asyncio.gather(*(ask_and_report(name, ask) for name, ask in requests.items()))
    return dict(zip(requests, replies, strict=True))


async def _ask_node(link: AgentLink | None, request: ProbeRequest) -> Mapping[str, Any] | Unknown:
    if link is None:
        return Unknown(why="the node was not reached")
    try:
        return await link.ask(request.op, request.within, **request.fields)
    except TransportError as error:
        return Unknown(why=error.seen)
