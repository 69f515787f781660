"""Bisection: from a group of nodes that fails to the node or pair that causes it, in O(log n) rounds.

Pure: a generator that yields disjoint groups to try in parallel and is sent which of them succeeded. A failing group
is split; if one half fails the search continues there, if neither does the fault lies between the halves.
"""

from collections.abc import Generator, Iterable, Sequence
from itertools import combinations
from typing import TypeAlias

from aboard.doctor.network.link_rates import group_bad_pairs
from aboard.doctor.network.mesh_result import Pair
from aboard.lazy_dataclass import dataclass

NodeGroup: TypeAlias = tuple[str, ...]
FaultSearch: TypeAlias = Generator[list[NodeGroup], list[bool], "tuple[NodeGroup, ...]"]
_Trial: TypeAlias = Generator[list[NodeGroup], list[bool], dict[NodeGroup, bool]]

PAIR = 2
# One fault may hide another; more than this many at once are not worth the wait.
MOST_SEARCHES = 3
MOST_STUCK = 8


@dataclass(frozen=True, kw_only=True)
class _Within:
    """Nodes that fail together."""

    nodes: NodeGroup


@dataclass(frozen=True, kw_only=True)
class _Between:
    """Two sides that each succeed alone and fail together."""

    one: NodeGroup
    other: NodeGroup


def locate_faults(names: Sequence[str], reported_pairs: Iterable[Pair] = ()) -> FaultSearch:
    """The nodes (one name) and links (two names) without which the rest works; empty when nothing fails any more.

    `names` have just failed together. `reported_pairs` are pairs in which one node reported waiting for the
    other: a starting point that saves rounds when it is right and costs one when it is wrong.
    """
    left = tuple(names)
    found: list[NodeGroup] = list((yield from _test_reported_pairs(left, reported_pairs)))
    if found:
        return tuple(found)
    for _ in range(MOST_SEARCHES):
        blames = yield from _bisect_groups(left)
        if not blames:
            break
        found += blames
        left = _remove_faulty_nodes(left, blames)
        if len(left) < PAIR or (yield [left])[0]:
            break
    return tuple(dict.fromkeys(found))


def _test_reported_pairs(
    names: NodeGroup, reported_pairs: Iterable[Pair]
) -> Generator[list[NodeGroup], list[bool], list[NodeGroup]]:
    """The reported faults, if a trial confirms them: the blamed nodes fail again and the rest does not."""
    pairs = {pair for pair in reported_pairs if set(pair) <= set(names) and pair[0] != pair[1]}
    blames = [blame for blame, _pairs in group_bad_pairs(pairs)]
    suspects = list(dict.fromkeys(name for blame in blames for name in blame))
    rest = [name for name in names if name not in suspects]
    if not blames:
        return []
    # Each with a new companion: a bad node fails again, the end of a bad link doesn't.
    companions = dict(zip(suspects, rest * len(suspects), strict=False))
    succeeded = yield from _try_groups(companions.items())
    bad = [name for name, other in companions.items() if not succeeded[name, other]]
    if any(len(blame) == 1 and blame[0] not in bad for blame in blames):
        return []
    links = [blame for blame in blames if not set(blame) & set(bad)]
    confirmed = [*links, *((name,) for name in bad)]
    others = _remove_faulty_nodes(names, confirmed)
    if bad and len(others) < PAIR:
        # Not conclusive: the only companion may be the bad one.
        return []
    again = yield from _try_groups([*links, others])
    return confirmed if all(well != (group in links) for group, well in again.items()) else []


def _remove_faulty_nodes(names: NodeGroup, blames: Iterable[NodeGroup]) -> NodeGroup:
    """Keeps one end of a faulty link: it works with all others."""
    gone = {blame[-1] for blame in blames}
    return tuple(name for name in names if name not in gone)


def _bisect_groups(names: NodeGroup) -> Generator[list[NodeGroup], list[bool], list[NodeGroup]]:
    """Tries all open questions of a level at once; those that need a companion wait for a known good node."""
    found: list[NodeGroup] = []
    good: dict[str, None] = {}
    questions: list[_Within | _Between] = [_Within(nodes=names)]
    while questions:
        groups_by_question = {
            question: groups for question in questions if (groups := _list_trial_groups(question, list(good)))
        }
        stuck = [question for question in questions if question not in groups_by_question]
        if not groups_by_question:
            return found + (yield from _try_all_pairs(stuck))
        succeeded = yield from _try_groups([group for groups in groups_by_question.values() for group in groups])
        good.update({name: None for group, well in succeeded.items() if well for name in group})
        questions = list(stuck)
        for question, groups in groups_by_question.items():
            faults, more = _interpret_trials(question, {group: succeeded[group] for group in groups})
            found += faults
            questions += more
    return found


def _list_trial_groups(question: _Within | _Between, good: Sequence[str]) -> list[NodeGroup]:
    """What to try next; a single node proves nothing, so it gets a known good companion."""
    if isinstance(question, _Between):
        return [(*a, *b) for a in _split_halves(question.one) for b in _split_halves(question.other)]
    if len(question.nodes) > PAIR + 1:
        return _split_halves(question.nodes)
    others = [name for name in good if name not in question.nodes]
    return [(name, others[at % len(others)]) for at, name in enumerate(question.nodes) if others]


def _interpret_trials(
    question: _Within | _Between, succeeded: dict[NodeGroup, bool]
) -> tuple[list[NodeGroup], list[_Within | _Between]]:
    """The faults located so far, and the questions to try next."""
    failed = [group for group, well in succeeded.items() if not well]
    if isinstance(question, _Between):
        sides = [_Between(one=a, other=b) for a in _split_halves(question.one) for b in _split_halves(question.other)]
        worse = [side for side in sides if (*side.one, *side.other) in failed]
        pairs: list[NodeGroup] = [(*side.one, *side.other) for side in worse if len(side.one) == len(side.other) == 1]
        return pairs, [side for side in worse if len(side.one) + len(side.other) > PAIR]
    nodes = question.nodes
    if len(nodes) > PAIR + 1:
        one, other = _split_halves(nodes)
        return [], [_Within(nodes=half) for half in failed] or [_Between(one=one, other=other)]
    if failed:
        return [group[:1] for group in failed], []
    if len(nodes) == PAIR:
        return [nodes], []
    return [], [_Between(one=nodes[:1], other=nodes[1:]), _Between(one=nodes[1:2], other=nodes[2:])]


def _try_all_pairs(questions: Sequence[_Within | _Between]) -> Generator[list[NodeGroup], list[bool], list[NodeGroup]]:
    """Without a known good node, tries every pair and blames the nodes in most failing pairs."""
    stuck = [question.nodes for question in questions if isinstance(question, _Within)]
    names = [name for nodes in stuck for name in nodes]
    if len(names) > MOST_STUCK:
        return stuck
    if len(names) <= PAIR:
        # With two nodes and nothing to compare, only the link can be blamed, if it fails again.
        again = yield from _try_groups([tuple(names)])
        return [] if again.get(tuple(names)) else stuck
    succeeded = yield from _try_groups(combinations(names, PAIR))
    return [
        blame
        for blame, _pairs in group_bad_pairs({(group[0], group[1]) for group, well in succeeded.items() if not well})
    ]


def _split_halves(nodes: NodeGroup) -> list[NodeGroup]:
    middle = (len(nodes) + 1) // 2
    return [half for half in (nodes[:middle], nodes[middle:]) if half]


def _try_groups(groups: Iterable[NodeGroup]) -> _Trial:
    """Tries all groups in rounds that use each node at most once; single nodes prove nothing and are skipped."""
    succeeded: dict[NodeGroup, bool] = {}
    remaining = [group for group in dict.fromkeys(groups) if len(group) >= PAIR]
    while remaining:
        now: list[NodeGroup] = []
        for group in remaining:
            if not any(set(group) & set(other) for other in now):
                now.append(group)
        succeeded.update(zip(now, (yield now), strict=True))
        remaining = [group for group in remaining if group not in now]
    return succeeded
