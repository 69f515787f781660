"""Judges the records that `bench/faults.py --keep DIR` has kept again, by the rules of this version, case by case.

`python bench/replay.py DIR [--save FILE] [--against FILE] [--json FILE]`: --save writes the verdicts, --against
compares with those that another version saved. Exit 0 only if no case is worse: a right verdict became wrong or silent,
or a healthy window got a finding above info.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.diagnoses import Finding, Severity
from aboard.engine.records.bundle import pack_run
from aboard.engine.records.bundle_replay import read_bundle_parts
from aboard.engine.records.recorded_run import RecordedRun, parse_recorded_run
from aboard.engine.records.replay_run import judge_recorded_snapshot, replay_run
from aboard.record.run_directory import RunDirectory
from faults_blind import BLIND
from faults_blind_more import BLIND_MORE
from faults_cases import CASES
from faults_stage import Stage
from faults_try import is_right
from figures import Figures

Verdict = dict[str, Any]
_CASES = {case.name: case for case in (*CASES, *BLIND, *BLIND_MORE)}


def keep_record(stage: Stage, directory: Path, part: str, name: str, since: float) -> None:
    """Packs the run in which a case was tried; in a run of several cases, it is judged from `since` on."""
    live = stage.last_run if stage.last_run is not None and stage.last_run.is_dir() else None
    record = pack_run(RunDirectory(live), SecretScrubber()) if live else stage.last_record
    if record is None:
        return
    directory.mkdir(parents=True, exist_ok=True)
    place = directory / "".join(each if each.isalnum() else "-" for each in f"{part} {name}")
    place.with_suffix(".tar.gz").write_bytes(record.data())
    place.with_suffix(".json").write_text(json.dumps({"part": part, "name": name, "since": since}) + "\n", "utf-8")


def judge_case(path: Path) -> Verdict:
    """The first verdict above info that the case's snapshots give now, or else the one on the end of the run."""
    kept = json.loads(path.read_text("utf-8"))
    recorded = parse_recorded_run(path.stem, read_bundle_parts(path.with_suffix(".tar.gz")))
    first = next(_list_verdicts(recorded, kept["since"]), None)
    case = _CASES.get(kept["name"]) if kept["part"] == "cases" else None
    right = first is None if case is None else first is not None and is_right(case, first)
    return {"right": right, "verdict": first}


def _list_verdicts(recorded: RecordedRun, since: float) -> Iterator[Verdict]:
    for snapshot in recorded.snapshots:
        if snapshot.at >= since and not snapshot.ended:
            yield from _select_reportable(judge_recorded_snapshot(recorded, snapshot).findings)
    yield from _select_reportable(replay_run(recorded).why.findings)


def _select_reportable(findings: tuple[Finding, ...]) -> Iterator[Verdict]:
    for each in findings[:1]:
        if each.severity > Severity.INFO:
            yield {"code": each.code, "nodes": list(each.nodes), "ranks": list(each.ranks)}


def _format_verdict(judged: Verdict) -> str:
    verdict = judged["verdict"]
    said = f"{verdict['code']} {verdict['nodes']} {verdict['ranks']}" if verdict else "nothing"
    return f"{said} ({'right' if judged['right'] else 'wrong'})"


def main() -> None:
    options = _parse_options()
    judged = {path.stem: judge_case(path) for path in sorted(options.directory.glob("*.json"))}
    if options.save:
        options.save.write_text(json.dumps(judged, indent=1) + "\n", "utf-8")
    before = json.loads(options.against.read_text("utf-8")) if options.against else {}
    worse = 0
    for name, now in judged.items():
        then = before.get(name, now)
        worse += then["right"] and not now["right"]
        if then != now:
            print(f"{name}: {_format_verdict(then)} → {_format_verdict(now)}")
    wrong = [name for name, each in judged.items() if not each["right"]]
    print(f"{len(judged) - len(wrong)} of {len(judged)} right; wrong: {', '.join(wrong) or 'none'}")
    found = Figures("replay")
    found.add("recorded cases whose verdict is worse than before", worse, 0)
    sys.exit(found.finish(options.json))


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--save", type=Path, metavar="FILE")
    parser.add_argument("--against", type=Path, metavar="FILE")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
