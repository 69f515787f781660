"""What a tracker shows about a run beside its metrics, and how far each tracker has got; kept in `output_dir`."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path, PurePath
from typing import Any, Self

from aboard.core.decoding import parse_json
from aboard.core.plan.training_settings import Training
from aboard.core.secrets.secret_names import MASK, SHORTEST_SECRET, build_value_mask, is_secret
from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.durable_files import write_atomically
from aboard.foreign_files import read_foreign_file
from aboard.lazy_dataclass import dataclass

METRICS = "metrics.jsonl"
FOLDER = "trackers"
# JSON from the head: git state and facts about the cluster.
FACTS = "ABOARD_TRACKER_FACTS"
_RUN = "run.json"
_MAX_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """One training as trackers see it; a resumed training keeps its `id`. Secrets were removed from all texts."""

    id: str
    name: str
    project: str | None
    model: str
    config: Mapping[str, Any]

    def default_project(self, name: str | None) -> str:
        """The setting, else the tracker's own variable, else the name of the model."""
        return self.project or name or self.model

    def save(self, output_dir: Path) -> None:
        (output_dir / FOLDER).mkdir(exist_ok=True)
        write_atomically(output_dir / FOLDER / _RUN, json.dumps(asdict(self), indent=1), sync=True)

    @classmethod
    def load(cls, output_dir: Path) -> Self | None:
        content = _read_json(output_dir / FOLDER / _RUN)
        return None if content is None else cls(**content)


def describe_run(training: Training, run_id: str, environ: Mapping[str, str]) -> TrackedRun:
    """The run with its settings and what the head knows; values of environment variables are no part of it."""
    facts = json.loads(environ.get(FACTS, "{}"))
    content = {**json.loads(json.dumps(asdict(training))), **facts}
    for name in ("report_to", "run_name", "project"):
        content.pop(name)
    return TrackedRun(
        id=run_id,
        name=scrub(training.run_name or PurePath(training.output_dir).name, environ),
        project=training.project,
        model=PurePath(training.model).name,
        config=scrub(content, environ),
    )


def choose_run_id(output_dir: Path, step: int, state: Mapping[str, Any]) -> str:
    """The id of the run that this one continues; a new one at step 0."""
    if step == 0:
        return secrets.token_hex(8)
    known = TrackedRun.load(output_dir)
    if known is not None:
        return known.id
    # Rank 0 may have moved to another node. A checkpoint of another directory belongs to another run.
    saved = state.get("tracker")
    same = isinstance(saved, dict) and saved.get("output_dir") == str(output_dir)
    return str(saved["run"]) if same and isinstance(saved, dict) else secrets.token_hex(8)


def scrub(value: Any, environ: Mapping[str, str]) -> Any:
    """Masks secrets by their shape, and the values of secret environment variables wherever they occur."""
    known = [each for name, each in environ.items() if is_secret(name) and len(each) >= SHORTEST_SECRET]
    mask = build_value_mask({json.dumps(each)[1:-1]: MASK for each in known})
    return json.loads(mask(json.dumps(SecretScrubber().value(value))))


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """How much of metrics.jsonl a tracker has: `lines` of the file, sent as `rows`.

    After a resume repeated lines, there are more rows than lines. `kept` is the number of lines up to `kept_step` that
    a resume kept, until the sender has taken it into account. `target` identifies server and project, `remote` the run
    there.
    """

    run: str
    target: str = ""
    lines: int = 0
    rows: int = 0
    kept: int | None = None
    kept_step: int = 0
    remote: str | None = None

    @classmethod
    def load(cls, output_dir: Path, tracker: str, run: str) -> "Cursor":
        """The cursor of this run; at its start if there is none, or only that of an earlier run."""
        content = _read_json(output_dir / FOLDER / f"{tracker}.json")
        cursor = cls(run=run) if content is None else cls(**content)
        return cursor if cursor.run == run else cls(run=run)

    def save(self, output_dir: Path, tracker: str) -> "Cursor":
        write_atomically(output_dir / FOLDER / f"{tracker}.json", json.dumps(asdict(self)), sync=True)
        return self

    def truncate(self, kept: int, step: int) -> "Cursor":
        """Remembers that lines after the first `kept`, those of steps after `step`, were removed from the file."""
        if self.kept is not None and self.kept < kept:
            return self
        return replace(self, kept=kept, kept_step=step)

    def settle(self) -> "Cursor":
        """The place to continue from: lines that were removed come again."""
        return self if self.kept is None else replace(self, lines=min(self.lines, self.kept), kept=None)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = None if path.is_symlink() else parse_json(read_foreign_file(path, _MAX_BYTES))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def count_lines(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return sum(1 for line in file if line.endswith(b"\n"))
    except FileNotFoundError:
        return 0


def flatten_metrics(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line as trackers name them: train/loss, eval/loss, ledger/data; ledger_total/data at the end."""
    ledger = "ledger_total" if "wall" in line else "ledger"
    found: dict[str, Any] = {}
    for name, value in line.items():
        if name == "seconds":
            found |= {f"{ledger}/{kind}": spent for kind, spent in value.items()}
        elif name == "wall":
            found[f"{ledger}/wall"] = value
        elif name.startswith("eval_"):
            found[f"eval/{name.removeprefix('eval_')}"] = value
        elif name not in ("step", "steps", "time", "generation"):
            found[f"train/{name}"] = value
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
