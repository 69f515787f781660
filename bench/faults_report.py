"""The table and the figures of the fault bench, from saved results."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import faults_recorded
from faults_fix import MENDS
from faults_peers import TOOLS
from faults_try import format_summary
from figures import Figures

RIGHT, PAIRS_RIGHT = 0.95, 0.8
SECOND = 2
MEDIAN_SECONDS, WORST_SECONDS = 5.0, 30.0
Results = Mapping[str, Mapping[str, Any]]


def print_table(cases: Results) -> None:
    for result in cases.values():
        print(format_summary(result))


def split_cases(cases: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """All cases, then the sets by what the authors of the rules knew of them."""
    known = [case for case in cases if not case.get("blind")]
    return [
        ("all", list(cases)),
        ("seen", [case for case in known if not case["held_out"]]),
        ("held out", [case for case in known if case["held_out"]]),
        ("blind", [case for case in cases if case.get("blind") == 1]),
        ("blind, second set", [case for case in cases if case.get("blind") == SECOND]),
    ]


def add_figures(found: Figures, kept: Mapping[str, Results]) -> None:
    """Adds the figures of each part that was run; shares count errors, so less is better."""
    cases = list(kept.get("cases", {}).values())
    if cases:
        _add_live_figures(found, cases)
    healthy = kept.get("healthy", {})
    if healthy:
        false = {name: each for name, each in healthy.items() if each["false"]}
        note = "; ".join(f"{name}: {' '.join(each['said'])[:120]}" for name, each in false.items())
        found.add(f"false verdicts in {len(healthy)} healthy windows", len(false), 0, note=note)
    pairs = kept.get("pairs", {})
    if pairs:
        wrong = [name for name, each in pairs.items() if not each["right"]]
        share, bar = len(wrong) / len(pairs), 1 - PAIRS_RIGHT
        found.add(
            f"two faults at once: first cause not reported first, of {len(pairs)}", share, bar, note="; ".join(wrong)
        )
    typed, mended = count_fixes(cases)
    if typed:
        bad = "; ".join(case["name"] for case in cases if _is_fix_tried(case) and not _is_fixed(case))
        found.add(f"printed fixes that do not work, of {typed} typed", typed - mended, 0, note=bad)
    _add_recorded_figures(found)
    _print_peers(kept)


def count_fixes(cases: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """How many fixes were typed, and how many worked."""
    tried = [case for case in cases if _is_fix_tried(case)]
    return len(tried), sum(_is_fixed(case) for case in tried)


def _is_fix_tried(case: Mapping[str, Any]) -> bool:
    return not str(case.get("fix_typed", "advice only")).startswith("advice only")


def _is_fixed(case: Mapping[str, Any]) -> bool:
    return str(case["fix_typed"]).startswith(MENDS)


def _add_live_figures(found: Figures, cases: Sequence[Mapping[str, Any]]) -> None:
    loads = [case["load"] for case in cases]
    load = f"load average {min(loads)} to {max(loads)}"
    for name, part in split_cases(cases):
        if part:
            wrong = [case["name"] for case in part if not case["right"]]
            note = f"{len(part) - len(wrong)} correct; " + "; ".join(wrong)
            found.add(f"wrong cause or node, {name} ({len(part)})", len(wrong) / len(part), 1 - RIGHT, note=note)
    named = sorted((case["seconds"], case["name"]) for case in cases if case["right_later"])
    if named:
        found.add("seconds to the verdict, median", statistics.median(at for at, _ in named), MEDIAN_SECONDS, note=load)
        found.add("seconds to the verdict, worst", named[-1][0], WORST_SECONDS, note=named[-1][1])


def _add_recorded_figures(found: Figures) -> None:
    scored = faults_recorded.score_cases(faults_recorded.load_cases())
    sick = [each for each in scored if each.case.code is not None]
    wrong = [each.case.name for each in sick if not each.right]
    found.add(
        f"wrong verdicts on recorded cases ({len(sick)})", len(wrong) / len(sick), 1 - RIGHT, note="; ".join(wrong)
    )


def summarize_peers(kept: Mapping[str, Results]) -> list[tuple[str, "PeerSummary"]]:
    """Summaries of the other launchers that have saved results."""
    return [(tool, PeerSummary.of(list(kept[tool].values()))) for tool in TOOLS if kept.get(tool)]


@dataclass(frozen=True, kw_only=True)
class PeerSummary:
    """How many faults another launcher reacts to within the cap, and for how many it names the node."""

    faults: int
    unharmed: int
    spoke: int
    named: int
    median: float | None

    @classmethod
    def of(cls, told: Sequence[Mapping[str, Any]]) -> "PeerSummary":
        harmed = [each for each in told if not each["unharmed"]]
        spoke = [each["seconds"] for each in harmed if each["seconds"] is not None]
        return cls(
            faults=len(harmed),
            unharmed=len(told) - len(harmed),
            spoke=len(spoke),
            named=sum(each["named"] for each in harmed),
            median=statistics.median(spoke) if spoke else None,
        )


def _print_peers(kept: Mapping[str, Results]) -> None:
    """For comparison, without a limit."""
    for tool, peer in summarize_peers(kept):
        middle = f" (median {peer.median:.1f} s)" if peer.median is not None else ""
        words = f"it prints something within 60 s for {peer.spoke}{middle} and names the node for {peer.named}"
        print(f"{tool}: of {peer.faults} faults ({peer.unharmed} more did not harm its training) {words}")
