"""Decides what to do next from a run's state; the conductor carries it out."""

from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_state import WHY_CHARS, Generation, PortOwner, RankProcess, Run
from aboard.diagnoses.runs import death
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy_dataclass import dataclass

# A rank stopped by SIGSTOP or Ctrl-Z blocks all others silently; a debugger shows as another state.
STOPPED_SECONDS = 5.0
PORTS_TRIED = 3


@dataclass(frozen=True, kw_only=True)
class EndDecision:
    """The run is over: stop all live ranks. `stacks`: take stacks first; `again`: try once more on another port.

    The reason: `death` of a rank, `asked` by the user, `stuck` for too long, or all have `finished`.
    """

    why: str
    stacks: bool = False
    again: bool = False
    death: bool = False
    asked: bool = False
    stuck: bool = False
    finished: bool = False


def decide(run: Run, world: int, *, stderr_tail: Untrusted = NO_TEXT, may_move: bool = True) -> EndDecision | None:
    """The first failure wins. `stderr_tail` is that of the first dead rank; `may_move` allows another port."""
    generation = run.generation
    owner, may_move = generation.port_owner, may_move and run.port_moves < PORTS_TRIED - 1
    first = generation.first_death
    nested = generation.nested
    if nested is not None and world > 1:
        return EndDecision(why=f"rank {nested.child} on {nested.node} started {nested.name.visible(40)}")
    ended = min((end.at for end in generation.supervisor_ends.values()), default=float("inf"))
    if first is not None and first.died_at < ended:
        return _decide_death(first, owner, stderr_tail, may_move=may_move)
    if why := _describe_loss(generation):
        return EndDecision(why=why, stacks=True)
    if owner is not None and owner.beside:
        return EndDecision(why=f"port {owner.port} on {owner.node} is also used by {owner}", again=may_move)
    return EndDecision(why="every rank has finished", finished=True) if generation.exited == world else None


def _describe_loss(generation: Generation) -> str:
    """The ranks, the node or the rank that can't go on; "" if all can."""
    if generation.supervisor_ends:
        node, end = min(generation.supervisor_ends.items(), key=lambda item: item[1].at)
        return f"the ranks on {node} were ended: {end.why.visible(WHY_CHARS)}"
    if generation.lost:
        return f"node {generation.lost[0]} was lost before its ranks finished"
    stopped = generation.stopped
    return "" if stopped is None else f"rank {stopped.name} on {stopped.node} was stopped"


def _decide_death(
    first: RankProcess, owner: PortOwner | None, stderr_tail: Untrusted, *, may_move: bool
) -> EndDecision:
    if may_move and is_port_taken(first, stderr_tail):
        by = f" by {owner} on {owner.node}" if owner is not None else ""
        return EndDecision(why=f"rank {first.name}'s port was in use{by}", again=True, death=True)
    return EndDecision(why=f"rank {first.name} on {first.node} died", stacks=True, death=True)


def is_port_taken(process: RankProcess, stderr_tail: Untrusted) -> bool:
    """Whether rank 0 died because its port was taken between preflight and launch."""
    error_text = process.raised.text if process.raised else stderr_tail
    return process.name == "0" and process.phase < Phase.STORE and error_text.match(death.PORT_TAKEN.regex) is not None
