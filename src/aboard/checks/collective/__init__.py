"""Collective: a real job of torch.distributed over all nodes gives the right sums, over every link, at an even rate."""

from collections.abc import Iterator
from dataclasses import replace

from aboard.checks.collective.crew import TORCH
from aboard.checks.collective.exercise import COLLECTIVE, Blame, Collective, collective
from aboard.checks.collective.nccl_rules import NCCL_RULES
from aboard.checks.collective.stories import STORIES
from aboard.checks.collective.words import LINK, fix_failed, fix_slow, fix_torch, who
from aboard.checks.unknown import unknown_facts, unknown_stories
from aboard.checks.usual import together
from aboard.core import nodeset
from aboard.core.facts import Facts, Unknown
from aboard.core.rule import Subject
from aboard.diagnoses import Finding, Severity


def no_rank(facts: Facts) -> Iterator[Finding]:
    """A node whose Python can't import torch, or whose rank ends without a word, takes part in no run."""
    for why, names in together(dict(_held(facts).dead)).items():
        yield Finding(
            code="collective-no-rank",
            severity=Severity.BLOCK,
            nodes=names,
            seen=f"a rank there comes to nothing: {why}",
            why="Ranks are started this way. The others would wait for it until they time out, and not know for whom.",
            fix=fix_torch(facts, names),
        )


def failed(facts: Facts) -> Iterator[Finding]:
    """A job that fails with a node or a link, and goes well without."""
    for blame in _held(facts).failed:
        yield Finding(
            code="collective-failed",
            severity=Severity.BLOCK,
            nodes=blame.nodes,
            seen=f"an all-reduce fails {who(blame.nodes, _held(facts).nodes)}: {blame.seen}",
            why="A run would wait in its first collective, for minutes, and end without a name.",
            fix=fix_failed(facts, blame.nodes),
        )


def wrong(facts: Facts) -> Iterator[Finding]:
    """Wrong sums are worse than none: a run goes on with them."""
    for blame in _held(facts).wrong:
        yield Finding(
            code="collective-wrong",
            severity=Severity.BLOCK,
            nodes=blame.nodes,
            seen=f"a collective gives wrong values {who(blame.nodes, _held(facts).nodes)}: {blame.seen}",
            why="Gradients would be wrong without a word: bad memory, a bad adapter, or another torch.",
            fix=fix_torch(facts, blame.nodes[:1])
            + f"\nsudo dmesg | grep -iE 'mce|ecc|edac|xid'    # on {nodeset.fold(blame.nodes)}; is it the hardware?",
        )


def uneven(facts: Facts) -> Iterator[Finding]:
    """A link that carries a fraction of the others, twice in two jobs."""
    for blame in _held(facts).slow:
        yield Finding(
            code="collective-slow-link" if len(blame.nodes) == LINK else "collective-slow-node",
            severity=Severity.WARN,
            nodes=blame.nodes,
            seen=f"{_whose(blame)}: {blame.seen}",
            why="Every collective waits for its slowest link, so the whole run goes at this rate.",
            fix=fix_slow(facts, blame.nodes),
        )


def only_once(facts: Facts) -> Iterator[Finding]:
    """A failure that doesn't come back is worth a line."""
    outcome = _held(facts)
    if outcome.once:
        yield Finding(
            code="collective-once",
            severity=Severity.INFO,
            nodes=(),
            seen=f"the job failed at first and went well when it was tried again: {outcome.once}",
            why="A machine that was busy for seconds, or a network that loses packets now and then.",
            fix="aboard check --only collective    # does it come back?",
        )


def not_all(facts: Facts) -> Iterator[Finding]:
    """What was not held, or not with all, is said."""
    outcome = _held(facts)
    reached = {node.name for node in facts.reached()}
    out = {name: why for name, why in outcome.left_out.items() if name in reached and name not in facts.unknown(TORCH)}
    for why, names in together(out).items():
        seen = (
            f"{why} on {nodeset.fold(names)}: no collective was held"
            if not outcome.nodes
            else f"held on {len(outcome.nodes)} of {len(facts.cluster)} nodes, without {nodeset.fold(names)}: {why}"
        )
        yield Finding(
            code="collective-not-held" if not outcome.nodes else "collective-part",
            severity=Severity.INFO,
            nodes=names,
            seen=seen,
            why="A run may fail in its first collective on nodes where none was tested.",
            fix="aboard check --only collective    # with all nodes, however long it takes"
            if outcome.nodes
            else fix_torch(facts, names),
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
        yield Finding(
            code="unknown-collective",
            severity=Severity.WARN,
            nodes=tuple(filter(None, names)),
            seen=f"the collective came to no end: {why}",
            why="What can't be asked can't be vouched for.",
            fix="aboard check --only collective",
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
    stories=(*STORIES, *unknown_stories((TORCH,))),
    untested=without_collective,
)


def subject(*, every: bool = False) -> Subject:
    """The subject; `every` node takes part, also of many that are one machine."""
    return replace(SUBJECT, exercises=(collective(every=every),))
