"""Sends metrics, and where checkpoints are, to the head through this rank's beacon; without one, does nothing."""

import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import isfinite
from typing import Any

from aboard.core.run.training_metrics import METRICS

# As many as the supervisor takes in one report.
_FILES_AT_ONCE = 500


def set_first_step(step: int) -> None:
    """Sets the step that the beacon counts from: `step` steps were done before a resume."""
    if (beacon := _get_beacon()) is not None:
        beacon.first_step = step


def send_metrics(metrics: Mapping[str, Any]) -> None:
    """Never waits and never raises: metrics that can't be sent now are superseded by the next."""
    if (beacon := _get_beacon()) is not None:
        with suppress(Exception):
            beacon.mention(f'"metrics":{json.dumps(_select_numbers(metrics))}')


def send_line(line: Mapping[str, Any]) -> None:
    """Sends a line of metrics.jsonl, which is repeated until the supervisor has it; never waits and never raises."""
    if (beacon := _get_beacon()) is not None:
        with suppress(Exception):
            beacon.tell(f'"logged":{json.dumps(line)}')


def send_saved(checkpoint: str, serial: int, files: Iterable[str], *, marker: str = "") -> None:
    """Reports which files of a checkpoint are on this node; callable from any thread, and never raises.

    `marker` is the hash of the checkpoint's marker, by which the head's record knows it again; rank 0 reports it.
    """
    names = list(files)
    if (beacon := _get_beacon()) is not None:
        with suppress(Exception):
            for start in range(0, len(names) or bool(marker), _FILES_AT_ONCE):
                saved: dict[str, Any] = {"checkpoint": checkpoint, "serial": serial}
                saved |= {"files": names[start : start + _FILES_AT_ONCE], **({"marker": marker} if marker else {})}
                beacon.answer(f'"saved":{json.dumps(saved)}')


def _get_beacon() -> Any:
    return getattr(sys.modules.get("aboard_beacon"), "armed", None)


def _select_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers that the head shows; JSON has no value for a non-finite loss."""
    values = {name: metrics.get(name) for name in METRICS}
    return {name: value for name, value in values.items() if isinstance(value, int | float) and isfinite(value)}
