"""Generates docs/faults.md from saved results: figures, every fault with its verdict, misses by name."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from faults_fix import GOES_ON, MENDS, SILENT, TRAINS
from faults_peers import TOOLS
from faults_report import count_fixes, split_cases, summarize_peers

Results = Mapping[str, Mapping[str, Any]]

_FIXED = {GOES_ON: "run continues", TRAINS: "next launch trains", SILENT: "next check passes"}

_TOP = """\
# Faults and verdicts

`bench/faults.py` injects faults into a real Gloo training (plain torch, 4 hosts with 2 ranks each, made of namespaces
by `aboard sandbox`), launched by `aboard launch` as an ordinary user. It scores what Aboard reports by itself against
the injected fault. A verdict is correct when the *first* finding names the cause, the node (a link has two ends: at
most two nodes) and, if one rank has the fault, that rank and no other. Seconds count from the fault's first effect: a
rank's mark just before it goes wrong, the injection, or, during rendezvous, the moment from which the others wait. For
faults before a launch they count from the command. A third of the cases, chosen by the hash of their names, is held
out: rules are not to be changed for them. The blind cases were written by somebody who had not read the rules, after
the rules were written, and were scored once. `python bench/faults.py --report --publish --resume FILE` generates this
page.

![seconds per fault](pictures/faults.svg)

"""
_HOW = """
## How to run it

    python bench/faults.py --resume faults.json             # all, resumable: about an hour on two quiet cores
    python bench/faults.py --resume faults.json --peers     # the same under torchrun and DeepSpeed: two to three hours
    python bench/faults.py --container podman               # 16 of them with ranks in Podman; or apptainer
    python bench/faults.py --ci                             # a dozen faults and five healthy windows: ten minutes
    python bench/faults.py --quick                          # three faults and the recorded logs: a minute
    python bench/faults.py --case "deadlock, run"           # one

The column "fixed" shows the result of the printed fix, carried out while the fault was still there: each line typed as
printed, on the node that it names. Then the same run continued, the next launch trained, or the next check no longer
reported the fault. "By hand" is a fix that no command can do (a cable, a power button, the user's own script); its
lines were typed too.
"""


def build_page(kept: Mapping[str, Results]) -> str:
    sections = [*_format_figures(kept), "", *_format_notes(kept), *_format_misses(kept), "", *_format_table(kept)]
    return _TOP + "\n".join(sections) + "\n" + _HOW


def _format_figures(kept: Mapping[str, Results]) -> Iterator[str]:
    cases = list(kept.get("cases", {}).values())
    yield "## Figures"
    yield ""
    yield "| what | limit | measured |"
    yield "|---|---|---|"
    for name, part in split_cases(cases):
        right = sum(case["right"] for case in part)
        share = 100 * right / max(1, len(part))
        yield f"| correct cause and node, {name} | ≥ 95 % | {right} of {len(part)}, {share:.0f} % |"
    said = sorted(case["seconds"] for case in cases if case["right_later"])
    loads = sorted(case["load"] for case in cases)
    if said:
        yield f"| seconds to the verdict, median | ≤ 5 | {statistics.median(said):.1f} |"
        yield f"| seconds to the verdict, worst | ≤ 30 | {said[-1]:.1f} |"
    healthy, pairs = kept.get("healthy", {}), kept.get("pairs", {})
    false, first = sum(each["false"] for each in healthy.values()), sum(each["right"] for each in pairs.values())
    yield f"| false verdicts in healthy windows | 0 | {false} of {len(healthy)} |"
    yield f"| two faults at once, first cause reported first | ≥ 80 % | {first} of {len(pairs)} |"
    typed, mended = count_fixes(cases)
    yield f"| printed fixes that work, typed as printed | – | {mended} of {typed} |"
    for tool, peer in summarize_peers(kept):
        share = f"{peer.spoke} and {peer.named} of {peer.faults}"
        yield f"| {tool}: any output within 60 s; names the node | – | {share} |"
    yield ""
    if loads:
        yield (
            f"Measured on a machine with two cores that others also used: load average {loads[0]} to {loads[-1]},"
            f" median {statistics.median(loads)}."
        )


def _format_notes(kept: Mapping[str, Any]) -> Iterator[str]:
    """Remarks on the measurement, from `notes` in the saved results."""
    if kept.get("notes"):
        yield "## Notes on this measurement"
        yield ""
        yield from (f"- {note}" for note in kept["notes"])
        yield ""


def _format_misses(kept: Mapping[str, Results]) -> Iterator[str]:
    yield "## Misses, by name"
    yield ""
    for case in kept.get("cases", {}).values():
        if not case["right"]:
            said = "; then ".join(line.partition(": rank")[0] for line in case["said"][:3]) or "nothing"
            known = ", held out" if case["held_out"] else ", blind" if case.get("blind") else ""
            where = f"{case['node']}, rank {case['rank']}{known}"
            yield f"- **{case['name']}** ({where}): expected {_join_codes(case['wanted'])}; reported: {said}"
    for name, each in kept.get("healthy", {}).items():
        if each["false"]:
            yield f"- **{name}** (a healthy window): {' '.join(each['said'])[:160]}"
    for name, each in kept.get("pairs", {}).items():
        if not each["right"]:
            yield f"- **{name}** (two at once): {'; '.join(each['said'][:2]) or 'nothing'}"


def _format_table(kept: Mapping[str, Results]) -> Iterator[str]:
    yield "## Every fault"
    yield ""
    yield "| fault, when | on | verdict | seconds | fixed | torchrun | DeepSpeed |"
    yield "|---|---|---|---|---|---|---|"
    for case in kept.get("cases", {}).values():
        verdict = f"`{case['code']}`" if case["right"] else f"**missed**: {case['code'] or 'nothing'}"
        seconds = "–" if case["seconds"] is None else f"{case['seconds']:.1f}"
        fixed = _format_fix_result(case)
        others = " | ".join(_format_peer(kept.get(tool, {}).get(case["name"])) for tool in TOOLS)
        yield f"| {case['name']} | {case['node']}, rank {case['rank']} | {verdict} | {seconds} | {fixed} | {others} |"


def _format_fix_result(case: Mapping[str, Any]) -> str:
    """The result of the printed fix; if it was not typed, of healing the fault."""
    typed = str(case.get("fix_typed", ""))
    if typed.startswith(MENDS):
        return _FIXED.get(typed, typed.removeprefix("typed: "))
    if typed.startswith("advice only"):
        return f"by hand:{typed.partition(':')[2]}"
    if typed:
        return f"**{typed}**"
    return "healed" if case.get("mended", "").startswith(("healed:", "mended:")) else "no" if case.get("mended") else ""


def _format_peer(told: Mapping[str, Any] | None) -> str:
    if told is None:
        return ""
    if told["seconds"] is None:
        return "unharmed" if told["unharmed"] else "silent"
    return f"{told['seconds']:.0f} s" + (", node named" if told["named"] else "")


def _join_codes(codes: list[str]) -> str:
    return " or ".join(f"`{code}`" for code in codes)
