"""The data check on ruined and on healthy data sets: how many it finds, how many it stops, and what it costs."""

import json
import sys
import tempfile
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from time import process_time
from typing import Any
from unittest import mock

from aboard.commands.data.prepare_data import DataCheckRequest, inspect_data
from aboard.diagnoses import Finding, Severity
from aboard.trainer.data.quality import data_check, row_statistics
from aboard.trainer.data.quality.row_sample import RowSample
from data_quality_sets import HEALTHY, RUINS, make_healthy, make_instructions, make_ruined
from figures import Figures, main

_SETS = "--sets"


def judge_file(path: Path) -> list[Finding]:
    """What the data check finds in a file, without a tokenizer."""
    return list(inspect_data(DataCheckRequest(files=(str(path),), command=f"aboard data {path.name}")).findings)


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's only option
    """Judges generated sets, or `--sets DIRECTORY` (ruined/*.jsonl and healthy/*.jsonl), and times the check."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if DIRECTORY is None:
            for name in RUINS:
                _write_rows(folder / "ruined" / f"{name}.jsonl", make_ruined(name))
            for name in HEALTHY:
                _write_rows(folder / "healthy" / f"{name}.jsonl", make_healthy(name))
        _judge_sets(figures, DIRECTORY or folder)
        _measure_cost(figures, folder, 8_000 if quick else 28_000)


def _judge_sets(figures: Figures, folder: Path) -> None:
    ruined, healthy = sorted((folder / "ruined").glob("*.jsonl")), sorted((folder / "healthy").glob("*.jsonl"))
    missed = []
    for path in ruined:
        findings = [each for each in judge_file(path) if each.severity > Severity.INFO]
        print(f"ruined  {path.stem:<28} {_name_codes(findings) or 'NOTHING FOUND'}", flush=True)
        missed += [] if findings else [path.stem]
    figures.add("share of ruined sets that pass", len(missed) / max(1, len(ruined)), 0.1, note=f"of {len(ruined)}")
    blocked, warned = [], []
    for path in healthy:
        findings = [each for each in judge_file(path) if each.severity > Severity.INFO]
        if findings:
            print(f"healthy {path.stem:<28} {_name_codes(findings)}", flush=True)
            blocked += [path.stem] if any(each.severity is Severity.BLOCK for each in findings) else []
            warned.append(path.stem)
    figures.add("healthy sets that are blocked", len(blocked), 0, note=f"of {len(healthy)}")
    figures.add("share of healthy sets with a warning", len(warned) / max(1, len(healthy)), 0.1)


def _take_no_rows(_rows: object, _bound: object = None) -> RowSample:
    return RowSample()


def _measure_cost(figures: Figures, folder: Path, count: int) -> None:
    """Processor time of the whole check with and without the sampled rows, in turns."""
    import random  # noqa: PLC0415 - for this part only

    path = folder / "large.jsonl"
    pairs = make_instructions(random.Random(1), count)  # noqa: S311 - no secrets
    _write_rows(path, [{"prompt": one, "completion": two} for one, two in pairs])
    best = {True: float("inf"), False: float("inf")}
    rules = data_check.RULES
    fewer = tuple(rule for rule in rules if rule is not data_check.check_sampled_rows)
    for _ in range(5):
        for sampled in (True, False):
            # The same check without the sample, in turns.
            data_check.RULES = rules if sampled else fewer
            with nullcontext() if sampled else mock.patch.object(row_statistics, "sample_rows", _take_no_rows):
                began = process_time()
                judge_file(path)
            best[sampled] = min(best[sampled], process_time() - began)
    data_check.RULES = rules
    note = f"{count} rows: {best[True]:.2f} s and {best[False]:.2f} s without a tokenizer"
    figures.add(
        "cost of the sampled rows for the data check",
        best[True] / best[False],
        1.1 if count > 10_000 else 1.6,
        unit="×",
        note=note,
    )
    long = folder / "long.jsonl"
    _write_rows(long, [{"prompt": "9" * 20_000 + str(at), "completion": "7 " * 20_000} for at in range(600)])
    began = process_time()
    judge_file(long)
    figures.add("600 rows of long numbers", process_time() - began, 3.0, unit="s")


def _name_codes(findings: Iterable[Finding]) -> str:
    return " ".join(dict.fromkeys(f"{each.code}{'!' if each.severity is Severity.BLOCK else ''}" for each in findings))


def _write_rows(path: Path, rows: Iterable[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


DIRECTORY: Path | None = None

if __name__ == "__main__":
    if _SETS in sys.argv:
        at = sys.argv.index(_SETS)
        DIRECTORY = Path(sys.argv[at + 1])
        del sys.argv[at : at + 2]
    main("data_quality", measure)
