"""Where the parts of a training's checkpoints were last, from the events of its runs."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Annotated

from aboard.core.decoding import Matching, MaxLength, try_decode
from aboard.core.run.events import Event
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass

SAVED = "saved"
_CHECKPOINT = r"\Astep-\d{6,20}(?:-\d{1,6})?\Z"
_FileNames = Annotated[tuple[Annotated[str, Matching(r"[\w.-]{1,100}")], ...], MaxLength(500)]


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
        name, serial = event.data.get("checkpoint"), event.data.get("serial")
        files = try_decode(_FileNames, event.data.get("files"))
        match = name.match(_CHECKPOINT) if isinstance(name, Untrusted) else None
        if event.kind != SAVED or match is None or not isinstance(serial, int) or files is None:
            continue
        if match[0] not in found or found[match[0]][0] != serial:
            found[match[0]] = (serial, {})
        found[match[0]][1].update(dict.fromkeys(files, event.node))
    return {name: RecordedCheckpoint(name=name, serial=serial, nodes=nodes) for name, (serial, nodes) in found.items()}
