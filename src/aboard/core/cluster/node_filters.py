"""DeepSpeed's `--include "h1@h2:0,2"` and `--exclude`, with node sets allowed as hosts (`gpu[01-04]:0,1`).

The rules are those of DeepSpeed's documentation, and of its launcher since pull request 8239 (before, `--include h1`
lost h1, and slots were not validated): only one of the two options; `@` between hosts; a host without slots means all
of its slots; slots of a repeated host are merged and sorted; an unknown host or slot is an error; a host with no slot
left is dropped; the order of nodes is kept.
"""

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from aboard.core.cluster.node_sets import expand_node_set, fold_names
from aboard.core.text.input_text import find_nearest
from aboard.diagnoses import InputError, Problem, Shell, format_shell
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import configuration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aboard.core.cluster.node import Node

_INCLUDE, _EXCLUDE = format_shell("--include"), format_shell("--exclude")
_SLOTS = re.compile(r"\s*[0-9]{1,5}\s*(?:,\s*[0-9]{1,5}\s*)*")
_BRACKETS = re.compile(r"\[[^\[\]]*\]")


def filter_nodes(nodes: "Sequence[Node]", *, include: str = "", exclude: str = "") -> "tuple[Node, ...]":
    """The nodes that remain after the filters, each with its picked slots."""
    if include and exclude:
        seen = "--include and --exclude can't be used together"
        raise InputError.of(configuration.FILTER, _EXCLUDE, seen, "one")
    if include:
        wanted = _parse_filter(nodes, include, _INCLUDE)
        left = [_include_slots(node, wanted[node.name]) for node in nodes if node.name in wanted]
    elif exclude:
        unwanted = _parse_filter(nodes, exclude, _EXCLUDE)
        left = [_exclude_slots(node, unwanted[node.name]) if node.name in unwanted else node for node in nodes]
    else:
        return tuple(nodes)
    remaining = tuple(node for node in left if node.slots != 0 and node.picked != ())
    if not remaining:
        option, text = (_INCLUDE, include) if include else (_EXCLUDE, exclude)
        seen = f"{option} {escape_text(text)} leaves no slots on {fold_names(node.name for node in nodes)}"
        raise InputError.of(configuration.FILTER, option, seen, "none-left", option=option)
    return remaining


def _parse_filter(nodes: "Sequence[Node]", text: str, option: Shell) -> dict[str, set[int]]:
    """The slots that the filter selects on each host; an empty set means the whole host."""
    known = {node.name: node for node in nodes}
    slots_by_host: dict[str, set[int]] = {}
    problems: list[Problem] = []
    for term in text.split("@"):
        try:
            hosts, slots = _parse_term(term, known, option)
        except InputError as error:
            problems += error.problems
            continue
        problems += _find_unknown(hosts, slots, known, option)
        for host in hosts:
            slots_by_host.setdefault(host, set()).update(slots)
    if problems:
        raise InputError(configuration.FILTER, problems)
    return slots_by_host


def _parse_term(term: str, known: "Mapping[str, Node]", option: Shell) -> tuple[tuple[str, ...], set[int]]:
    if term in known:  # an IPv6 address contains colons
        return (term,), set()
    hosts, colon, slots = term.rpartition(":")
    if not colon:
        hosts = term
    elif not _SLOTS.fullmatch(slots):
        raise _build_slots_error(term, hosts, slots, option)
    if re.search(r"[\s,]", _BRACKETS.sub("", hosts)):
        right = "@".join(re.split(r"[\s,]+", hosts.strip(", \t")))
        seen = f"'{escape_text(hosts)}' is not a list of hosts separated by '@'"
        fix = configuration.FILTER.fix("hosts", option=option, hosts=configuration.quote_doubly(right))
        raise InputError(configuration.FILTER, [Problem(where=option, seen=seen, fix=fix)])
    return expand_node_set(hosts, where=option), {int(slot) for slot in slots.split(",")} if colon else set()


def _build_slots_error(term: str, hosts: str, slots: str, option: Shell) -> InputError:
    host = hosts or "gpu01"
    another = re.search(r",\s*([A-Za-z][^,]*)", slots)
    right = f"{host}:0@{another[1]}" if another else f"{host}:0,2"
    seen = f"'{escape_text(slots)}' in '{escape_text(term)}' is not a list of slot numbers"
    right = configuration.quote_doubly(right)
    return InputError.of(configuration.FILTER, option, seen, "slots", option=option, hosts=right)


def _find_unknown(
    hosts: "Sequence[str]", slots: set[int], known: "Mapping[str, Node]", option: Shell
) -> "Iterator[Problem]":
    """The unknown hosts and slots of a term, in one problem each, since a node set may name thousands of hosts."""
    unknown_hosts = [host for host in hosts if host not in known]
    if unknown_hosts:
        near = find_nearest(unknown_hosts[0], known)
        fix = (
            configuration.FILTER.fix("near", near=near)
            if near
            else configuration.FILTER.fix("nodes", nodes=escape_text(fold_names(known)))
        )
        yield Problem(where=option, seen=f"no node is called '{escape_text(fold_names(unknown_hosts))}'", fix=fix)
    counts = {host: known[host].slots for host in hosts if host in known}
    uncounted = [host for host, count in counts.items() if count is None]
    if uncounted and slots and option == _EXCLUDE:
        some = escape_text(fold_names(uncounted))
        seen = f"the remaining slots on {some} are unknown, because its number of slots is not set"
        fix = configuration.FILTER.fix("count", nodes=some)
        yield Problem(where=option, seen=seen, fix=fix)
    for slot in sorted(slots):
        without = [host for host, count in counts.items() if count is not None and slot >= count]
        if without:
            fix = configuration.FILTER.fix("range", node=without[0], last=(counts[without[0]] or 0) - 1)
            if not counts[without[0]]:
                fix = configuration.FILTER.fix("no-slots", node=without[0])
            yield Problem(where=option, seen=f"{escape_text(fold_names(without))} has no slot {slot}", fix=fix)


def _include_slots(node: "Node", slots: set[int]) -> "Node":
    return replace(node, picked=_choose_slots(node, slots)) if slots else node


def _exclude_slots(node: "Node", slots: set[int]) -> "Node":
    if not slots:
        return replace(node, picked=())
    return replace(node, picked=_choose_slots(node, set(range(node.slots or 0)) - slots))


def _choose_slots(node: "Node", slots: set[int]) -> tuple[int, ...] | None:
    return None if node.slots is not None and len(slots) == node.slots else tuple(sorted(slots))
