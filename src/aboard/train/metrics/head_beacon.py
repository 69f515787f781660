"""Tells the head what a line of metrics says, by the beacon that the keeper put into this rank; alone, nobody."""

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from typing import Any

from aboard.core.run.training_metrics import METRICS


def set_first_step(step: int) -> None:
    """Steps that the beacon reports from now on are the training's own: `step` of them were made before a resume."""
    beacon = getattr(sys.modules.get("aboard_beacon"), "armed", None)
    if beacon is not None:
        beacon.first_step = step


def send_metrics(metrics: Mapping[str, Any]) -> None:
    """Never waits and never raises: what can't be sent now is superseded by the next."""
    beacon = getattr(sys.modules.get("aboard_beacon"), "armed", None)
    if beacon is not None:
        with suppress(Exception):
            beacon.mention(f'"metrics":{json.dumps(_select_numbers(metrics))}')


def _select_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Those that the head shows; a loss that isn't finite is no number that JSON knows."""
    values = {name: metrics.get(name) for name in METRICS}
    return {name: value for name, value in values.items() if isinstance(value, int | float) and isfinite(value)}
