"""Events and measurements, from which the state of a run is computed."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from aboard.core.decoding import Word
from aboard.lazy_dataclass import dataclass

# A rank's output streams. Log indexes number them in this order.
STREAMS = ("stdout", "stderr")
# The lines of a trainer's metrics, which come as another stream does.
METRICS_STREAM = "metrics"
# Aboard's own processes on a node.
AGENT_PROCESSES = ("supervisor", "guard", "bridge")
# Why a supervisor ends its ranks: the head requested it, the lease expired, its guard was killed, it received a signal,
# or Slurm ended the step.
END_CAUSES = ("head", "lease", "guard", "signal", "slurm")
# Why parts of a checkpoint are not copied to a node: its disk is full, the other node can't be reached or has nothing,
# what came is not what was saved, or the run has ended.
COPY_OBSTACLES = ("full", "peer", "damaged", "late")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something rare that happened on a node; durable, numbered by its supervisor, at the head's corrected time.

    Kinds that supervisors report: unpacking (a rank waits for its image), started, phase, saved (files of a checkpoint
    are on this node, `copied` from another or not), uncopied (they could not be), raised, nested (a rank started a
    launcher), captured (a script's launcher waits for the head), withdrawn (it ended before its release), escaped (it
    was killed, since it would have started ranks itself), exited, failed, listening (the run, on rank 0's port),
    port_taken (somebody else listens there), ending, ended, continued and killed (one of Aboard's own processes). The
    conductor's own, without a number: generation, held, cut, gone (of a node), dropped (a node sent more than is kept),
    stopped (of a rank), port (rank 0's), paused (the conductor itself did not run), verdict (what the progress watch
    found; none when the run makes progress again),
    looked (a snapshot was judged that covers all events before this), stepping (a generation begins its first step),
    caught_up (it has repeated all lost steps), unsent (messages or metrics
    don't arrive, or do again), deciding, stopping, restarting, recovering, finished.
    """

    node: str
    seq: int = 0
    at: float
    kind: Word
    child: str = ""
    rank: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Figures of one child of which only the latest values matter: step, step_seconds, rss, cpu, state.

    `metrics` are what its trainer reports: loss, learning_rate and the like.
    """

    node: str
    at: float
    child: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
