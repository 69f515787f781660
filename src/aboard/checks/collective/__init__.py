"""Collective: a real job of torch.distributed over all nodes gives the right sums, over every link, at an even rate."""

from collections.abc import Iterator
from dataclasses import replace

from aboard.checks.collective import exercise
from aboard.checks.collective.crew import TORCH
from aboard.checks.collective.exercise import COLLECTIVE, Blame, Collective
from aboard.checks.collective.nccl_rules import NCCL_RULES
from aboard.checks.collective.words import LINK, SHOWN, card, tries_of_torch, who
from aboard.checks.unknown import unknown_facts, unknown_stories
from aboard.checks.usual import together
from aboard.core import nodeset
from aboard.core.facts import Facts, Unknown
from aboard.core.nodeset import fold_quoted
from aboard.core.rule import Subject
from aboard.diagnoses import Finding, collective, join_fixes
from aboard.diagnoses.catalogue import diagnoses_in


def no_rank(facts: Facts) -> Iterator[Finding]:
    """A node whose Python can't import torch, or whose rank ends without a word, takes part in no run."""
    for why, names in together(dict(_held(facts).dead)).items():
        yield collective.NO_RANK.finding(
            nodes=names,
            seen=f"a rank there comes to nothing: {why}",
            fix=join_fixes(*(collective.NO_RANK.fix(command=each) for each in tries_of_torch(facts, names))),
        )


def failed(facts: Facts) -> Iterator[Finding]:
    """A job that fails with a node or a link, and goes well without."""
    for blame in _held(facts).failed:
        yield collective.FAILED.finding(
            nodes=blame.nodes,
            seen=f"an all-reduce fails {who(blame.nodes, _held(facts).nodes)}: {blame.seen}",
            fix=collective.FAILED.fix(where=fold_quoted(blame.nodes), interface=card(facts, blame.nodes)),
        )


def wrong(facts: Facts) -> Iterator[Finding]:
    """Wrong sums are worse than none: a run goes on with them."""
    for blame in _held(facts).wrong:
        tries = [collective.WRONG.fix("torch", command=each) for each in tries_of_torch(facts, blame.nodes[:1])]
        yield collective.WRONG.finding(
            nodes=blame.nodes,
            seen=f"a collective gives wrong values {who(blame.nodes, _held(facts).nodes)}: {blame.seen}",
            fix=join_fixes(*tries, collective.WRONG.fix("hardware", where=fold_quoted(blame.nodes))),
        )


def uneven(facts: Facts) -> Iterator[Finding]:
    """A link that carries a fraction of the others, twice in two jobs."""
    for blame in _held(facts).slow:
        diagnosis = collective.SLOW_LINK if len(blame.nodes) == LINK else collective.SLOW_NODE
        yield diagnosis.finding(
            nodes=blame.nodes,
            seen=f"{_whose(blame)}: {blame.seen}",
            why="Every collective waits for its slowest link, so the whole run goes at this rate.",
            fix=join_fixes(*(diagnosis.fix(interface=card(facts, [node]), node=node) for node in blame.nodes[:SHOWN])),
        )


def only_once(facts: Facts) -> Iterator[Finding]:
    """A failure that doesn't come back is worth a line."""
    outcome = _held(facts)
    if outcome.once:
        yield collective.ONCE.finding(
            nodes=(),
            seen=f"the job failed at first and went well when it was tried again: {outcome.once}",
            fix=collective.ONCE.fix(),
        )


def not_all(facts: Facts) -> Iterator[Finding]:
    """What was not held, or not with all, is said."""
    outcome = _held(facts)
    reached = {node.name for node in facts.reached()}
    out = {name: why for name, why in outcome.left_out.items() if name in reached and name not in facts.unknown(TORCH)}
    for why, names in together(out).items():
        risk = "A run may fail in its first collective on nodes where none was tested."
        if outcome.nodes:
            held = f"held on {len(outcome.nodes)} of {len(facts.cluster)} nodes"
            seen = f"{held}, without {nodeset.fold(names)}: {why}"
            yield collective.PART.finding(nodes=names, seen=seen, why=risk, fix=collective.PART.fix())
        else:
            yield collective.NOT_HELD.finding(
                nodes=names,
                seen=f"{why} on {nodeset.fold(names)}: no collective was held",
                why=risk,
                fix=join_fixes(*(collective.NOT_HELD.fix(command=each) for each in tries_of_torch(facts, names))),
            )


def without_collective(facts: Facts) -> dict[str, str]:
    """The nodes that took part in no collective: all when none ran, else those left out."""
    outcome = facts.outcome(COLLECTIVE)
    if not isinstance(outcome, Collective) or outcome.dead or outcome.lost:
        return {}
    reached = [node.name for node in facts.reached()]
    if outcome.ranks == 1:
        return dict.fromkeys(reached, "a single rank exchanges nothing")
    if outcome.nodes:
        return {name: why for name, why in outcome.left_out.items() if name in reached}
    whys = together({name: why for name, why in outcome.left_out.items() if name in reached})
    said = "; ".join(f"{why} on {nodeset.fold(names)}" for why, names in whys.items())
    return dict.fromkeys(reached, said)


def not_known(facts: Facts) -> Iterator[Finding]:
    """An exercise that came to no end says so."""
    outcome = facts.outcome(COLLECTIVE)
    lost = {"": outcome.why} if isinstance(outcome, Unknown) else dict(_held(facts).lost)
    for why, names in together(lost).items():
        yield collective.UNKNOWN_COLLECTIVE.finding(
            nodes=tuple(filter(None, names)),
            seen=f"the collective came to no end: {why}",
            fix=collective.UNKNOWN_COLLECTIVE.fix(),
        )


def _held(facts: Facts) -> Collective:
    outcome = facts.outcome(COLLECTIVE)
    return outcome if isinstance(outcome, Collective) else Collective()


def _whose(blame: Blame) -> str:
    return f"{blame.nodes[0]} ↔ {blame.nodes[1]}" if len(blame.nodes) == LINK else f"the links of {blame.nodes[0]}"


SUBJECT = Subject(
    name="collective",
    title="an all-reduce over the nodes gives the right sums at an even rate",
    probes=(TORCH,),
    exercises=(COLLECTIVE,),
    rules=(no_rank, failed, wrong, uneven, only_once, not_all, not_known, *NCCL_RULES, unknown_facts(TORCH)),
    stories=(*diagnoses_in(collective), *unknown_stories((TORCH,))),
    untested=without_collective,
)


def subject(*, every: bool = False) -> Subject:
    """The subject; `every` node takes part, also of many that are one machine."""
    return replace(SUBJECT, exercises=(exercise.collective(every=every),))
