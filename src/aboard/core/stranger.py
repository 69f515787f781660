"""A process of a training that somebody else started, as its node tells of it."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from aboard.core.words import visible
from aboard.lazy import dataclass

TEXT = 255
MANY = 4096
MOST_RANKS = 2**17


@dataclass(frozen=True, kw_only=True)
class Stranger:
    """`rank` of `world` meets the others at `address` and `port`, where it `hosts` the store or is a guest.

    `job` is the step of Slurm's that it belongs to. A `launcher` is one that has started no rank yet; its number is
    that of its node. `why` tells why a process that was asked for may not be looked at: absent, denied, or ours, of
    `run`.
    """

    pid: int
    rank: int | None = None
    world: int | None = None
    address: str = ""
    port: int = 0
    job: str = ""
    hosts: bool = False
    torch: bool = False
    launcher: str = ""
    cwd: str = ""
    began: float = 0.0
    user: str = ""
    what: str = ""
    why: str = ""
    run: str = ""


def strangers_of(given: object, offset: float) -> tuple[Stranger, ...]:
    """Read at the border: what is no process is left out. `offset` is the node's clock less ours."""
    rows = given[:MANY] if isinstance(given, list) else []
    return tuple(_stranger(row, offset) for row in rows if isinstance(row, dict) and _count(row.get("pid")))


def _stranger(row: Mapping[str, Any], offset: float) -> Stranger:
    rank, world = _count(row.get("rank")), _count(row.get("world"))
    fits = world is not None and 0 < world <= MOST_RANKS and (rank is None or rank < world)
    began = row.get("began")
    return Stranger(
        pid=_count(row.get("pid")) or 0,
        rank=rank if fits else None,
        world=world if fits else None,
        address=_text(row.get("address")),
        port=_count(row.get("port")) or 0,
        job=_text(row.get("job")),
        hosts=row.get("hosts") is True,
        torch=row.get("torch") is True,
        launcher=_text(row.get("launcher")),
        cwd=_text(row.get("cwd")),
        began=began - offset if isinstance(began, float) and isfinite(began) else 0.0,
        user=_text(row.get("user")),
        what=_text(row.get("what")),
        why=_text(row.get("why")),
        run=_text(row.get("run")),
    )


def _text(given: object) -> str:
    return visible(given, TEXT) if isinstance(given, str) else ""


def _count(given: object) -> int | None:
    return given if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 2**31 else None
