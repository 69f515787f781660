"""Faults put into a real training on sandbox hosts, and what is said of each: the cause, the node, how soon.

Every part is kept in the file of --resume as it is measured, and is not measured again. --quick is three faults and the
recorded logs, within a minute; --ci a dozen faults and five healthy windows, within ten; --peers puts the same faults
under torchrun and DeepSpeed; --report only tells what is on record.
"""

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import faults_report
from aboard.diagnoses import AboardError
from aboard.sandbox import Sandbox
from faults_blind import BLIND
from faults_blind_more import BLIND_MORE
from faults_cases import CASES, Case
from faults_curve import curve
from faults_healthy import watch, windows
from faults_page import page
from faults_pairs import PAIRS, try_pair
from faults_peers import TOOLS, peers_know, silent_when_well, try_peer
from faults_picture import picture
from faults_stage import BOX, NODES, SLOTS, Stage
from faults_try import Session, summary, try_case
from figures import Figures

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
EVERY = (*CASES, *BLIND, *BLIND_MORE)
DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as scratch:
        kept = Kept(Path(options.resume or f"{scratch}/faults.json"), again=bool(options.case))
        if not options.report:
            _measure(kept, options)
        found = Figures("faults")
        faults_report.table(kept.all.get("cases", {}))
        faults_report.figures(found, kept.all)
        if options.publish:
            _publish(kept.all)
        sys.exit(found.finish(options.json))


def _publish(kept: dict[str, dict[str, Any]]) -> None:
    pictures = DOCS / "pictures"
    live = [each for each in kept["cases"].values() if each["when"] != "before"]
    (pictures / "faults.svg").write_text(picture(live, {tool: kept.get(tool, {}) for tool in TOOLS}))
    (pictures / "faults-named.svg").write_text(curve(kept))
    (DOCS / "faults.md").write_text(page(kept))


def _measure(kept: "Kept", options: argparse.Namespace) -> None:
    if options.peers:
        # Most of it is waiting, so that both have their turns at once.
        with ThreadPoolExecutor(len(TOOLS)) as lanes:
            done = [lanes.submit(_measure_peer, kept, tool, _cases(options)) for tool in TOOLS]
        for lane in done:
            lane.result()
        return
    with _stage(BOX) as stage:
        session = Session(stage)
        for part, name, do in _work(stage, session, options):
            kept.measure(part, name, do, lambda: _tidy(stage, session))
        session.close()


def _measure_peer(kept: "Kept", tool: str, cases: list[Case]) -> None:
    with _stage(f"{BOX}-{tool}") as stage:
        silent_when_well(stage, tool)
        for case in cases:
            if peers_know(case):
                kept.measure(tool, case.name, partial(try_peer, stage, case, tool), stage.mend)


@contextlib.contextmanager
def _stage(name: str) -> Iterator[Stage]:
    stage = Stage(Sandbox.up(name, nodes=NODES, slots=SLOTS, fabric=True, temporary=True))
    try:
        yield stage
    finally:
        stage.box.down()


def _work(stage: Stage, session: Session, options: argparse.Namespace) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """What is to be done, in its order: part, name, and how."""
    for case in _cases(options):
        yield "cases", case.name, lambda case=case: try_case(stage, case, session)  # type: ignore[misc]
    if options.quick or options.case or options.part == "cases":
        return
    for name, disturbance, number in windows(few=options.ci):
        yield "healthy", name, lambda each=disturbance, number=number: watch(stage, session, each, number)  # type: ignore[misc]
    for pair in () if options.ci else PAIRS:
        yield "pairs", pair.name, lambda pair=pair: try_pair(stage, pair, session)  # type: ignore[misc]


def _cases(options: argparse.Namespace) -> list[Case]:
    if options.case:
        return [case for case in EVERY if case.name in options.case]
    if options.part in ("healthy", "pairs"):
        return []
    wanted = QUICK if options.quick else CI if options.ci else [case.name for case in EVERY]
    # Those that one training lives through come one after the other.
    return sorted((case for case in EVERY if case.name in wanted), key=lambda case: case.lasts)


def _tidy(stage: Stage, session: Session) -> None:
    session.close()
    stage.mend()


class Kept:
    """What was measured, on disk after each."""

    def __init__(self, path: Path, *, again: bool) -> None:
        self._path = path
        self._again = again
        self._writing = Lock()
        self.all: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def measure(self, part: str, name: str, do: Callable[[], Any], tidy: Callable[[], None]) -> None:
        """A bench that fails at one case goes on with the next, and has none for it."""
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
        print(summary(result) if part == "cases" else f"{part}: {name}: {_short(result)}", flush=True)


def _short(result: dict[str, Any]) -> str:
    if "false" in result:
        return f"FALSE {result['said']}" if result["false"] else "silent"
    if "right" in result:
        return f"{'right' if result['right'] else 'WRONG'} {result['seconds']} s {result['said'][:2]}"
    words = (
        f"{result['seconds']} s" if result["seconds"] is not None else "unharmed" if result["unharmed"] else "silent"
    )
    return f"{words} {'named' if result['named'] else ''} {result['said'][:1]}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="within a minute")
    parser.add_argument("--ci", action="store_true", help="within ten minutes")
    parser.add_argument("--peers", action="store_true", help="the same faults under torchrun and DeepSpeed")
    parser.add_argument("--part", choices=("cases", "healthy", "pairs"), help="only this part")
    parser.add_argument("--case", action="append", metavar="NAME", help="only this one, also if it is on record")
    parser.add_argument("--resume", metavar="FILE", help="keep results here, and go on from what is there")
    parser.add_argument("--report", action="store_true", help="tell what is on record, and measure nothing")
    parser.add_argument("--publish", action="store_true", help="write docs/faults.md and its picture")
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
