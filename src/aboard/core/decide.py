"""What to do next in a run: a decision over its state, carried out elsewhere."""

from aboard.core.phase import Phase
from aboard.core.run import Child, Run
from aboard.diagnoses import death
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy import dataclass

# A rank that somebody stopped (SIGSTOP, Ctrl-Z) holds up all others without a word; a debugger shows as another state.
STOPPED_SECONDS = 5.0
PORTS_TRIED = 3


@dataclass(frozen=True, kw_only=True)
class End:
    """The run is over: end what lives. With `stacks`, take them first; with `again`, try once more on another port.

    `death` says that a rank's own death decided it, `asked` that the user did, `stuck` that it was stuck for too long.
    """

    why: str
    stacks: bool = False
    again: bool = False
    death: bool = False
    asked: bool = False
    stuck: bool = False


def decide(run: Run, world: int, *, said: Untrusted = NO_TEXT, may_move: bool = True) -> End | None:
    """The first failure wins. `said` is what the first that died left on stderr; `may_move` allows another port."""
    now = run.generation
    first = now.first_death
    if first is not None:
        if may_move and now.number < PORTS_TRIED and port_taken(first, said):
            return End(why=f"rank {first.name}'s port was taken", again=True, death=True)
        return End(why=f"rank {first.name} on {first.node} died", stacks=True, death=True)
    if now.lost:
        return End(why=f"{now.lost[0]} is gone", stacks=True)
    if now.stopped is not None:
        return End(why=f"rank {now.stopped.name} on {now.stopped.node} is stopped", stacks=True)
    if now.exited == world:
        return End(why="every rank has finished")
    return None


def port_taken(child: Child, said: Untrusted) -> bool:
    """Whether rank 0 died because somebody took its port between the look and the launch."""
    told = child.raised.text if child.raised else said
    return child.name == "0" and child.phase < Phase.STORE and told.match(death.PORT_TAKEN.regex) is not None
