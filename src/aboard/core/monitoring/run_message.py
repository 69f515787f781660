"""A message about an event of a run: what happened, on which node, what to type, and what Aboard does about it."""

from datetime import UTC, datetime
from typing import Any

from aboard.core.cluster.node_sets import fold_names
from aboard.core.secrets.secret_scrubber import mask_secrets
from aboard.diagnoses import Finding
from aboard.lazy_dataclass import dataclass

VERSION = 1
_TEXT = 1500


@dataclass(frozen=True, kw_only=True)
class RunMessage:
    """`events` are those of EVENTS that it is about: the last failure of a run is also its end.

    `what` completes a sentence that begins with the run: `has finished`.
    """

    run: str
    events: tuple[str, ...]
    what: str
    at: float
    attempt: int = 1
    step: int | None = None
    verdict: Finding | None = None
    nodes: tuple[str, ...] = ()
    action: str = ""
    exit_code: int | None = None

    def build_document(self, number: int) -> dict[str, Any]:
        """The message as JSON, without secrets; the number makes its id unique within the run."""
        found = self.verdict
        nodes = self.nodes or (() if found is None else found.nodes)
        seen, fix, title = ("", "", "") if found is None else (found.seen, found.fix, found.diagnosis.title)
        seen, fix, action = (mask_secrets(text)[:_TEXT] for text in (seen, str(fix), self.action))
        where = f" on {fold_names(nodes)}" if nodes else ""
        headline = mask_secrets(f"{self.run} {self.what}{where}{title and ': '}{title}")[:_TEXT]
        reached = "" if self.step is None else f", step {self.step:,}"
        labelled = {"seen": seen, "fix": fix, "then": action}
        lines = [
            headline,
            f"attempt {self.attempt}{reached}",
            *(f"{key}: {text}" for key, text in labelled.items() if text),
        ]
        return {
            "version": VERSION,
            "id": f"{self.run}-{number}",
            "run": self.run,
            "event": self.events[0],
            "ended": "end" in self.events,
            "at": round(self.at, 3),
            "time": datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds"),
            "headline": headline,
            "attempt": self.attempt,
            "step": self.step,
            "exit_code": self.exit_code,
            "code": None if found is None else found.code,
            "severity": None if found is None else found.severity.word,
            "nodes": list(nodes),
            "ranks": [] if found is None else list(found.ranks),
            "seen": seen,
            "fix": fix,
            "action": action,
            "text": "\n".join(lines),
        }
