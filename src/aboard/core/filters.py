"""DeepSpeed's `--include "h1@h2:0,2"` and `--exclude`, with node sets allowed as hosts (`gpu[01-04]:0,1`).

As DeepSpeed documents them and as its launcher does since its pull request 8239 (before, `--include h1` lost h1, and
slots were not checked): only one of the two; `@` between hosts; no slots means all of the host's; slots of a host
named twice add up, sorted; an unknown host or slot is an error; a host without a slot left is dropped; the order of
the nodes stays.
"""

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from aboard.core.nodeset import expand, fold
from aboard.core.words import nearest, visible
from aboard.diagnoses import InputError, Problem, Shell, configuration, shell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aboard.core.node import Node

_INCLUDE, _EXCLUDE = shell("--include"), shell("--exclude")
_SLOTS = re.compile(r"\s*[0-9]{1,5}\s*(?:,\s*[0-9]{1,5}\s*)*")
_BRACKETS = re.compile(r"\[[^\]]*\]")


def pick(nodes: "Sequence[Node]", *, include: str = "", exclude: str = "") -> "tuple[Node, ...]":
    """The nodes that the filters leave, each with its picked slots."""
    if include and exclude:
        seen = "--include and --exclude can't be used together"
        raise InputError(
            configuration.FILTER, [Problem(where=_EXCLUDE, seen=seen, fix=configuration.FILTER.fix("one"))]
        )
    if include:
        wanted = _named(nodes, include, _INCLUDE)
        left = [_included(node, wanted[node.name]) for node in nodes if node.name in wanted]
    elif exclude:
        unwanted = _named(nodes, exclude, _EXCLUDE)
        left = [_excluded(node, unwanted[node.name]) if node.name in unwanted else node for node in nodes]
    else:
        return tuple(nodes)
    kept = tuple(node for node in left if node.slots != 0 and node.picked != ())
    if not kept:
        option, text = (_INCLUDE, include) if include else (_EXCLUDE, exclude)
        seen = f"{option} {visible(text)} leaves no slot of {fold(node.name for node in nodes)}"
        fix = configuration.FILTER.fix("none-left", option=option)
        raise InputError(configuration.FILTER, [Problem(where=option, seen=seen, fix=fix)])
    return kept


def _named(nodes: "Sequence[Node]", text: str, option: Shell) -> dict[str, set[int]]:
    """The slots that the filter names for each host; an empty set means that it names the whole host."""
    known = {node.name: node for node in nodes}
    named: dict[str, set[int]] = {}
    problems: list[Problem] = []
    for term in text.split("@"):
        try:
            hosts, slots = _term(term, known, option)
        except InputError as error:
            problems += error.problems
            continue
        problems += _unknown(hosts, slots, known, option)
        for host in hosts:
            named.setdefault(host, set()).update(slots)
    if problems:
        raise InputError(configuration.FILTER, problems)
    return named


def _term(term: str, known: "Mapping[str, Node]", option: Shell) -> tuple[tuple[str, ...], set[int]]:
    if term in known:  # an IPv6 address has colons of its own
        return (term,), set()
    hosts, colon, slots = term.rpartition(":")
    if not colon:
        hosts = term
    elif not _SLOTS.fullmatch(slots):
        raise InputError(configuration.FILTER, [_bad_slots(term, hosts, slots, option)])
    if re.search(r"[\s,]", _BRACKETS.sub("", hosts)):
        right = "@".join(re.split(r"[\s,]+", hosts.strip(", \t")))
        seen = f"'{visible(hosts)}' should be hosts with '@' between them"
        fix = configuration.FILTER.fix("hosts", option=option, hosts=configuration.in_quotes(right))
        raise InputError(configuration.FILTER, [Problem(where=option, seen=seen, fix=fix)])
    return expand(hosts, where=option), {int(slot) for slot in slots.split(",")} if colon else set()


def _bad_slots(term: str, hosts: str, slots: str, option: Shell) -> Problem:
    host = hosts or "gpu01"
    another = re.search(r",\s*([A-Za-z][^,]*)", slots)
    right = f"{host}:0@{another[1]}" if another else f"{host}:0,2"
    seen = f"'{visible(slots)}' in '{visible(term)}' is no list of slot numbers"
    fix = configuration.FILTER.fix("slots", option=option, hosts=configuration.in_quotes(right))
    return Problem(where=option, seen=seen, fix=fix)


def _unknown(
    hosts: "Sequence[str]", slots: set[int], known: "Mapping[str, Node]", option: Shell
) -> "Iterator[Problem]":
    """What of this term doesn't exist: one problem for all hosts alike, since a node set may name thousands."""
    strangers = [host for host in hosts if host not in known]
    if strangers:
        near = nearest(strangers[0], known)
        fix = (
            configuration.FILTER.fix("near", near=near)
            if near
            else configuration.FILTER.fix("nodes", nodes=visible(fold(known)))
        )
        yield Problem(where=option, seen=f"no node is called '{visible(fold(strangers))}'", fix=fix)
    counts = {host: known[host].slots for host in hosts if host in known}
    unsure = [host for host, count in counts.items() if count is None]
    if unsure and slots and option == _EXCLUDE:
        some = visible(fold(unsure))
        seen = f"which slots {some} has left isn't known, since its number of slots wasn't given"
        fix = configuration.FILTER.fix("count", nodes=some)
        yield Problem(where=option, seen=seen, fix=fix)
    for slot in sorted(slots):
        without = [host for host, count in counts.items() if count is not None and slot >= count]
        if without:
            fix = configuration.FILTER.fix("range", node=without[0], last=(counts[without[0]] or 0) - 1)
            if not counts[without[0]]:
                fix = configuration.FILTER.fix("no-slots", node=without[0])
            yield Problem(where=option, seen=f"{visible(fold(without))} has no slot {slot}", fix=fix)


def _included(node: "Node", slots: set[int]) -> "Node":
    return replace(node, picked=_picked(node, slots)) if slots else node


def _excluded(node: "Node", slots: set[int]) -> "Node":
    if not slots:
        return replace(node, picked=())
    return replace(node, picked=_picked(node, set(range(node.slots or 0)) - slots))


def _picked(node: "Node", slots: set[int]) -> tuple[int, ...] | None:
    return None if node.slots is not None and len(slots) == node.slots else tuple(sorted(slots))
