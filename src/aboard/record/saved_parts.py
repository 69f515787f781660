"""Where the parts of a training's checkpoints were last, from the events of its runs."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Annotated

from aboard.core.decoding import MaxLength, try_decode
from aboard.core.run.events import Event
from aboard.lazy_dataclass import dataclass

SAVED = "saved"
_FileNames = Annotated[tuple[str, ...], MaxLength(500)]


@dataclass(frozen=True, kw_only=True)
class RecordedCheckpoint:
    """A checkpoint by name; `nodes` has the node on which each file was last."""

    name: str
    serial: int
    nodes: Mapping[str, str] = field(default_factory=dict)


def collect_saved_parts(events: Iterable[Event]) -> dict[str, RecordedCheckpoint]:
    """The checkpoints that ranks saved or resumed from, by name; of a name that was used again, the last."""
    found: dict[str, tuple[int, dict[str, str]]] = {}
    for event in events:
        serial = event.data.get("serial")
        name = event.data.get("checkpoint")
        files = try_decode(_FileNames, event.data.get("files"))
        if event.kind != SAVED or name is None or not isinstance(serial, int) or files is None:
            continue
        text = name if isinstance(name, str) else name.raw()
        if text not in found or found[text][0] != serial:
            found[text] = (serial, {})
        found[text][1].update(dict.fromkeys(files, event.node))
    return {name: RecordedCheckpoint(name=name, serial=serial, nodes=nodes) for name, (serial, nodes) in found.items()}
