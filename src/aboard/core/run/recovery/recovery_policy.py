"""What to do when a generation has failed: a pure decision over the failures so far, as `docs/recovery.md` shows it."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from aboard.core.cluster.node_sets import fold_names
from aboard.core.decoding import MaxLength
from aboard.core.text.input_text import format_count
from aboard.diagnoses.failure_class import FailureClass
from aboard.lazy_dataclass import dataclass

# How often the same nodes may have a transient failure before one of them is blamed.
TRANSIENT_LIMIT = 2
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 60.0


class StallAction(StrEnum):
    """What is done about a run that is certainly stuck, besides reporting why."""

    REPORT = "report"
    STOP = "stop"
    RESTART = "restart"


@dataclass(frozen=True, kw_only=True)
class RecoverySettings:
    """`restarts` is the budget of generations without a new checkpoint; `wait`, how long a node or a service may need.

    `spares` are names of nodes that replace others, in this order. A run gets smaller only down to `min_nodes`.
    """

    restarts: int = 0
    spares: tuple[str, ...] = ()
    min_nodes: int | None = None
    wait: float = 600.0
    on_stall: StallAction = StallAction.REPORT
    # Whether processes that have done a rank's imports wait for the next generation.
    standby: bool = True

    @property
    def has_standbys(self) -> bool:
        return self.standby and self.restarts > 0


@dataclass(frozen=True, kw_only=True)
class Failure:
    """How a generation failed.

    `nodes` are those of its verdict, and `checkpoint` numbers the newest checkpoint of the run then. Two failures with
    the same `signature` (exception and step) are the same bug.
    """

    kind: FailureClass
    code: str
    nodes: Annotated[tuple[str, ...], MaxLength(16_384)] = ()
    signature: str = ""
    checkpoint: int = 0
    # Nodes that can't be reached: nothing starts there again until they return.
    lost: tuple[str, ...] = ()
    # A folder is locked, and this long an old rank of this run on a node that can't be reached may be what locks it.
    own_lease: float = 0.0


class Action(StrEnum):
    """What is done about a failure."""

    STOP = "stop"
    RESTART = "restart"
    REPLACE = "replace"
    WAIT = "wait"
    SHRINK = "shrink"


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """The decision: `nodes` are replaced by as many `spares`, waited for up to `wait` seconds, or left out.

    `pause` is the back-off before the next generation. With `lease`, all old ranks must have ended before.
    """

    action: Action
    why: str
    nodes: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    wait: float = 0.0
    pause: float = 0.0
    lease: bool = False

    @property
    def doing(self) -> str:
        """What is done, in a few words."""
        match self.action:
            case Action.REPLACE:
                return f"{fold_names(self.spares)} {'take' if len(self.spares) > 1 else 'takes'} over"
            case Action.WAIT | Action.SHRINK:
                return f"waiting for {fold_names(self.nodes)}" if self.nodes else "waiting until it clears"
            case _:
                return "restarting on the same nodes"


def count_attempts(failures: Sequence[Failure], settings: RecoverySettings) -> int:
    """The number of the last generation that the budget allows, unless there is a new checkpoint."""
    recent = sum(failure.checkpoint == failures[-1].checkpoint for failure in failures)
    return len(failures) + 1 + max(0, settings.restarts - recent)


def decide_recovery(
    failures: Sequence[Failure], settings: RecoverySettings, active: Sequence[str], spares: Sequence[str]
) -> Recovery:
    """What to do after the last of these failures; `spares` are those that are ready, `active` the nodes of the run."""
    last = failures[-1]
    recent = [failure for failure in failures if failure.checkpoint == last.checkpoint]
    # A wait for an old rank of our own clears by itself, and is no sign of anything.
    counted = [failure for failure in recent if not failure.own_lease]
    if why := _find_limit(last, counted, settings):
        return _stop(why)
    pause = 0.0 if len(counted) <= 1 else min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (len(counted) - 2))
    match FailureClass.NODE if last.lost else last.kind:
        case FailureClass.TRANSIENT:
            same = [each for each in recent if each.kind is last.kind and set(each.nodes) & set(last.nodes)]
            if len(same) > TRANSIENT_LIMIT and last.nodes:
                return _handle_node(recent, settings, active, spares, pause, blamed=True)
            return Recovery(action=Action.RESTART, why="the failure may be transient", pause=pause)
        case FailureClass.UNKNOWN:
            return _handle_unknown(recent, settings, active, spares, pause)
        case FailureClass.OUTSIDE:
            return _handle_outside(last, settings, pause)
        case _:
            return _handle_node(recent, settings, active, spares, pause)


def _find_limit(last: Failure, counted: Sequence[Failure], settings: RecoverySettings) -> str:
    """Why the run is not restarted, whatever else could be done; "" if it may be."""
    if settings.restarts == 0:
        return "restarts are off"
    if last.kind is FailureClass.PROGRAM:
        return "the program failed, and would fail again"
    if len(counted) > settings.restarts:
        return f"it was restarted {format_count(settings.restarts, 'time')} without a new checkpoint"
    return ""


def _handle_outside(last: Failure, settings: RecoverySettings, pause: float) -> Recovery:
    if last.own_lease:
        why = "old ranks on a node that can't be reached may use it until their lease is over"
        return Recovery(action=Action.WAIT, why=why, wait=last.own_lease, lease=True)
    why = "the cause is external; waiting for it to recover"
    return Recovery(action=Action.WAIT, why=why, nodes=last.nodes, wait=settings.wait, pause=pause)


def _handle_unknown(
    recent: Sequence[Failure],
    settings: RecoverySettings,
    active: Sequence[str],
    spares: Sequence[str],
    pause: float,
) -> Recovery:
    """Once on the same nodes; then it is the program's, or that of a node which had it twice."""
    *before, last = recent
    unknown = [each for each in before if each.kind is FailureClass.UNKNOWN]
    if not unknown:
        return Recovery(action=Action.RESTART, why="the cause is unknown: once more on the same nodes", pause=pause)
    if any(each.signature == last.signature for each in unknown):
        return _stop("it failed again with the same error at the same step")
    both = [node for node in last.nodes if any(node in each.nodes for each in unknown)]
    if both and len(both) < len(active):
        return _handle_node(recent, settings, active, spares, pause, blamed=True)
    return _stop("it failed again for an unknown reason")


def _handle_node(
    recent: Sequence[Failure],
    settings: RecoverySettings,
    active: Sequence[str],
    spares: Sequence[str],
    pause: float,
    *,
    blamed: bool = False,
) -> Recovery:
    """A spare, else waiting for the node, else fewer nodes if that was asked for, else the end.

    A node that is `blamed` for failing repeatedly, or that failed before, is not waited for: it would only fail again.
    """
    *before, last = recent
    # If a node was lost, what others reported besides is its consequence.
    named = last.nodes if last.kind is FailureClass.NODE or not last.lost else ()
    bad = tuple(node for node in dict.fromkeys((*last.lost, *named)) if node in active)
    if not bad:
        return _stop("no node can be named that a spare could replace")
    times = 1 + max(sum(node in (*each.lost, *each.nodes) for each in before) for node in bad)
    who = f"{fold_names(bad)} failed" + (f" {times} times without a new checkpoint" if times > 1 else "")
    if len(spares) >= len(bad):
        chosen = tuple(spares[: len(bad)])
        why = f"{who}: {fold_names(chosen)} {'take' if len(chosen) > 1 else 'takes'} over"
        return Recovery(action=Action.REPLACE, why=why, nodes=bad, spares=chosen, pause=pause)
    left = len(active) - len(bad) + len(spares)
    if settings.min_nodes is not None and left >= settings.min_nodes:
        why = f"{who}, and no spare is left: {format_count(left, 'node')} go on"
        return Recovery(action=Action.SHRINK, why=why, nodes=bad, spares=tuple(spares), wait=settings.wait, pause=pause)
    why = f"{who}, and there is no spare"
    if blamed or any(each.kind is FailureClass.NODE and set(each.nodes) & set(bad) for each in before):
        return _stop(why)
    return Recovery(action=Action.WAIT, why=why, nodes=bad, wait=settings.wait, pause=pause)


def _stop(why: str) -> Recovery:
    return Recovery(action=Action.STOP, why=why)
