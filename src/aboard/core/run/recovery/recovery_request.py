"""What the user asks of recovery, in aboard.yaml or as options, and the settings that follow for the nodes of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from typing import Self

from aboard.core.cluster.node_sets import expand_node_set, fold_names
from aboard.core.run.recovery.recovery_policy import RecoverySettings, StallAction
from aboard.core.text.input_text import format_count
from aboard.diagnoses import Diagnosis, InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import commands
from aboard.lazy_dataclass import dataclass

# Why `min_nodes` can't be obeyed, as variants of its diagnosis.
MIN_NODES_REFUSALS = {
    "launch": "a script can't be told to continue on fewer nodes",
    "batch": "train.global_batch_size is not set, so fewer nodes would train with smaller batches",
}


@dataclass(frozen=True, kw_only=True)
class RecoveryRequest:
    """Each setting is None where nothing was said; `spares` is how many of the last nodes, or node sets.

    `places` says where each was set, for messages.
    """

    restarts: int | None = None
    spares: int | tuple[str, ...] | None = None
    min_nodes: int | None = None
    wait: float | None = None
    standby: bool | None = None
    on_stall: StallAction | None = None
    places: Mapping[str, str] = field(default_factory=dict)

    def override(self, other: Self) -> Self:
        """This request, with what `other` says instead."""
        names = [each.name for each in fields(self) if each.name != "places"]
        said = {name: value for name in names if (value := getattr(other, name)) is not None}
        return replace(self, **said, places={**self.places, **other.places})


def parse_spares(text: str) -> int | tuple[str, ...]:
    """The value of `--spares`: a number, or a node set."""
    return int(text) if text.isdecimal() else (text,)


def resolve_recovery(
    request: RecoveryRequest,
    names: Sequence[str],
    *,
    restarts: int,
    on_stall: StallAction = StallAction.REPORT,
    min_nodes_refusal: str = "",
) -> RecoverySettings:
    """The settings of a run on these nodes; raises InputError for what they can't meet.

    `restarts` is the default: 0 means that only spares imply restarts. So is `on_stall`; without restarts, a stuck run
    is only reported. With a `min_nodes_refusal`, a run can't get smaller.
    """
    spares = _choose_spares(request, names)
    least, left = request.min_nodes, len(names) - len(spares)
    if least is not None:
        where = request.places.get("min_nodes", "min_nodes")
        if min_nodes_refusal:
            raise _build_error(
                commands.LAUNCH_MIN_NODES, where, MIN_NODES_REFUSALS[min_nodes_refusal], min_nodes_refusal
            )
        if least > left:
            seen = f"it is {least}, but ranks start on {format_count(left, 'node')}"
            raise _build_error(commands.LAUNCH_MIN_NODES, where, seen, "fewer", most=left)
    implied = restarts or len(spares)
    budget = implied if request.restarts is None else request.restarts
    on_stall = request.on_stall or on_stall
    return RecoverySettings(
        restarts=budget,
        spares=spares,
        min_nodes=least,
        on_stall=StallAction.REPORT if on_stall is StallAction.RESTART and not budget else on_stall,
        **({} if request.wait is None else {"wait": request.wait}),
        standby=request.standby is not False,
    )


def _choose_spares(request: RecoveryRequest, names: Sequence[str]) -> tuple[str, ...]:
    spares, where = request.spares, request.places.get("spares", "spares")
    if spares is None:
        return ()
    if isinstance(spares, int):
        chosen = tuple(names[max(0, len(names) - spares) :])
    else:
        chosen = tuple(dict.fromkeys(name for text in spares for name in expand_node_set(text, where=where)))
    missing = [name for name in chosen if name not in names]
    if missing or len(chosen) >= len(names):
        seen = "no node would be left for ranks"
        if missing:
            seen = f"{escape_text(missing[0])} is not a node of this run"
        raise _build_error(commands.LAUNCH_SPARES, where, seen, nodes=fold_names(names))
    return chosen


def _build_error(diagnosis: Diagnosis, where: str, seen: str, *variant: str, **values: str | int) -> InputError:
    return InputError(diagnosis, [Problem(where=where, seen=seen, fix=diagnosis.fix(*variant, **values))])
