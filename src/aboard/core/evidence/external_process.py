"""A process of an external job, as its node reports it."""

from dataclasses import replace
from typing import Annotated

from aboard.core.decoding import MaxLength, Word, try_decode
from aboard.lazy_dataclass import dataclass

MOST_RANKS = 2**17
_Text = Annotated[str, MaxLength(255)]


@dataclass(frozen=True, kw_only=True)
class ExternalJobProcess:
    """`rank` of `world` has its rendezvous at `address` and `port`; `hosts` says whether it hosts the store.

    `job` is its Slurm step. A `launcher` has not started ranks yet; its rank is its node's number. `why` is why a
    requested process can't be inspected: absent, denied, or ours (then `run` names the run).
    """

    pid: int
    rank: int | None = None
    world: int | None = None
    address: _Text = ""
    port: int = 0
    job: Word = ""
    hosts: bool = False
    torch: bool = False
    launcher: _Text = ""
    cwd: _Text = ""
    began: float = 0.0
    user: _Text = ""
    what: _Text = ""
    why: Word = ""
    run: _Text = ""


_Processes = Annotated[tuple[ExternalJobProcess, ...], MaxLength(4096)]


def decode_external_processes(value: object, offset: float) -> tuple[ExternalJobProcess, ...]:
    """Ignores what isn't a process. `offset` is the node's clock minus ours."""
    rows = try_decode(_Processes, value) or ()
    return tuple(_normalize_process(row, offset) for row in rows if row.pid)


def _normalize_process(row: ExternalJobProcess, offset: float) -> ExternalJobProcess:
    fits = row.world is not None and 0 < row.world <= MOST_RANKS and (row.rank is None or row.rank < row.world)
    began = row.began - offset if row.began else 0.0
    return replace(row, began=began) if fits else replace(row, began=began, rank=None, world=None)
