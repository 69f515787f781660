"""Injects faults into a real training on sandbox hosts and scores the verdicts: cause, node, seconds.

Each result is saved to the file of --resume, and is not measured again. --quick: three faults and the recorded logs,
one minute. --ci: a dozen faults and five healthy windows, ten minutes. --peers: the same faults under torchrun and
DeepSpeed. --container: a selection with ranks in containers. --report only prints saved results.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import faults_report
from aboard.diagnoses import AboardError
from faults_blind import BLIND
from faults_blind_more import BLIND_MORE
from faults_cases import CASES, Case
from faults_curve import draw_curve
from faults_healthy import list_windows, watch_window
from faults_page import build_page
from faults_pairs import PAIRS, try_pair
from faults_peers import TOOLS, is_peer_case, require_silence, try_peer
from faults_picture import draw_picture
from faults_stage import BOX, Stage
from faults_try import Session, format_summary, try_case
from figures import Figures
from replay import keep_record

QUICK = ("key removed, before", "cable pulled, before", "module missing, import")
CI = (
    *QUICK,
    "disk full, before",
    "store dropped at rank 0, init",
    "unknown name of rank 0, init",
    "data doesn't come, run",
    "deadlock, run",
    "network dropped, run",
    "cable pulled, run",
    "rank killed, run",
    "power lost, run",
)
# One for each way in which a container could hide a rank: its processes, stacks, exit codes, files and connections.
INSIDE = (
    "data doesn't come, run",
    "deadlock, run",
    "endless loop, run",
    "sleeps, run",
    "slow rank, run",
    "network dropped, run",
    "cable pulled, run",
    "module missing, import",
    "a rank comes late, init",
    "unknown name of rank 0, init",
    "raises, run",
    "exits, run",
    "segmentation fault, run",
    "rank killed, run",
    "rank stopped, run",
    "power lost, run",
)
# Printed fixes that can't reach a running container, by runtime.
_REBUILD = {"module missing, import": "somebody must rebuild the image"}
LATER = {
    "apptainer": _REBUILD,
    "podman": {**_REBUILD, "unknown name of rank 0, init": "Podman copies /etc/hosts at the start"},
}
EVERY = (*CASES, *BLIND, *BLIND_MORE)
DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    options = _parse_options()
    with tempfile.TemporaryDirectory() as scratch:
        kept = ResultStore(Path(options.resume or f"{scratch}/faults.json"), again=bool(options.case))
        if not options.report:
            _measure_parts(kept, options)
        found = Figures("faults")
        faults_report.print_table(kept.all.get("cases", {}))
        faults_report.add_figures(found, kept.all)
        if options.publish:
            _publish_docs(kept.all)
        sys.exit(found.finish(options.json))


def _publish_docs(kept: dict[str, dict[str, Any]]) -> None:
    pictures = DOCS / "pictures"
    live = [each for each in kept["cases"].values() if each["when"] != "before"]
    (pictures / "faults.svg").write_text(draw_picture(live, {tool: kept.get(tool, {}) for tool in TOOLS}))
    (pictures / "faults-named.svg").write_text(draw_curve(kept))
    (DOCS / "faults.md").write_text(build_page(kept))


def _measure_parts(kept: "ResultStore", options: argparse.Namespace) -> None:
    if options.peers:
        # Most of the time is waiting, so both can run at once.
        with ThreadPoolExecutor(len(TOOLS)) as lanes:
            done = [lanes.submit(_measure_peer, kept, tool, _select_cases(options)) for tool in TOOLS]
        for lane in done:
            lane.result()
        return
    with _build_stage(BOX, options.container) as stage:
        session = Session(stage)
        for part, name, do in _list_work(stage, session, options):
            began = time.time()
            kept.measure(part, name, do, lambda: _clean_up(stage, session))
            if options.keep:
                keep_record(stage, Path(options.keep), part, name, began)
        session.close()


def _measure_peer(kept: "ResultStore", tool: str, cases: list[Case]) -> None:
    with _build_stage(f"{BOX}-{tool}") as stage:
        require_silence(stage, tool)
        for case in cases:
            if is_peer_case(case):
                kept.measure(tool, case.name, partial(try_peer, stage, case, tool), stage.restore)


@contextlib.contextmanager
def _build_stage(name: str, container: str = "") -> Iterator[Stage]:
    stage = Stage(name, container)
    try:
        yield stage
    finally:
        stage.box.down()


def _list_work(
    stage: Stage, session: Session, options: argparse.Namespace
) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """The work in order: part, name, and the function that measures it."""
    for case in _select_cases(options):
        yield "cases", case.name, lambda case=case: try_case(stage, case, session)  # type: ignore[misc]
    if options.quick or options.case or options.container or options.part == "cases":
        return
    for name, disturbance, number in list_windows(few=options.ci):
        yield "healthy", name, lambda each=disturbance, number=number: watch_window(stage, session, each, number)  # type: ignore[misc]
    for pair in () if options.ci else PAIRS:
        yield "pairs", pair.name, lambda pair=pair: try_pair(stage, pair, session)  # type: ignore[misc]


def _select_cases(options: argparse.Namespace) -> list[Case]:
    if options.case:
        return [case for case in EVERY if case.name in options.case]
    if options.part in ("healthy", "pairs"):
        return []
    every = INSIDE if options.container else [case.name for case in EVERY]
    wanted = QUICK if options.quick else CI if options.ci else every
    # Cases that one training survives come one after the other.
    cases = sorted((case for case in EVERY if case.name in wanted), key=lambda case: case.lasts)
    later = LATER.get(options.container, {})
    return [replace(case, by_hand=case.by_hand or later.get(case.name, "")) for case in cases]


def _clean_up(stage: Stage, session: Session) -> None:
    session.close()
    stage.restore()


class ResultStore:
    """All results, saved to disk after each one."""

    def __init__(self, path: Path, *, again: bool) -> None:
        self._path = path
        self._again = again
        self._writing = Lock()
        self.all: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def measure(self, part: str, name: str, do: Callable[[], Any], tidy: Callable[[], None]) -> None:
        """Measures one case; if the bench itself fails, the case has no result and the next one follows."""
        if name in self.all.get(part, {}) and not self._again:
            return
        try:
            result = do()
        except (AssertionError, AboardError, OSError) as error:
            print(f"{part}: {name}: the bench itself failed: {error}", flush=True)
            tidy()
            return
        with self._writing:
            self.all.setdefault(part, {})[name] = result
            self._path.write_text(json.dumps(self.all, indent=1) + "\n")
        print(format_summary(result) if part == "cases" else f"{part}: {name}: {_format_result(result)}", flush=True)


def _format_result(result: dict[str, Any]) -> str:
    if "false" in result:
        return f"FALSE ALARM {result['said']}" if result["false"] else "no finding"
    if "right" in result:
        return f"{'correct' if result['right'] else 'WRONG'} {result['seconds']} s {result['said'][:2]}"
    words = (
        f"{result['seconds']} s" if result["seconds"] is not None else "unharmed" if result["unharmed"] else "silent"
    )
    return f"{words} {'named' if result['named'] else ''} {result['said'][:1]}"


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three faults and the recorded logs; one minute")
    parser.add_argument("--ci", action="store_true", help="a dozen faults and five healthy windows; ten minutes")
    parser.add_argument("--peers", action="store_true", help="run the same faults under torchrun and DeepSpeed")
    parser.add_argument("--container", choices=("apptainer", "podman"), default="", help="run the ranks in containers")
    parser.add_argument("--part", choices=("cases", "healthy", "pairs"), help="only this part")
    parser.add_argument("--case", action="append", metavar="NAME", help="only this case, even if it has a saved result")
    parser.add_argument("--keep", metavar="DIR", help="keep the record of each case there, for bench/replay.py")
    parser.add_argument("--resume", metavar="FILE", help="save results in this file, and skip those already in it")
    parser.add_argument("--report", action="store_true", help="print saved results without measuring")
    parser.add_argument("--publish", action="store_true", help="write docs/faults.md and its pictures")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
