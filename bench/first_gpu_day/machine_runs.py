"""What the machines are, what `aboard check` says of them, and a first script under `aboard launch`."""

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from aboard.diagnoses.untrusted import Untrusted
from first_gpu_day.day_run import DayRun, Figure, Outcome, State
from first_gpu_day.gpu_day import GpuDay, format_logs, read_number

_NCCL_DEBUG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,ENV"}
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*([0-9]{1,6}(?:\.[0-9]{1,6})?)")
# torch's dumps of 2,000 entries take a tenth of this.
_MOST_DUMP = 64 << 20
# Of a node: one that reports more must not displace the others.
_MOST_TEXTS = 12


def describe_machines(day: GpuDay) -> Outcome:
    done = day.launch("machines", "describe_node.py", options=("--ranks", "1", "--check", "none"), minutes=2)
    reports = day.read_reports("machines")
    figures: dict[str, Figure] = {}
    texts_of: dict[str, dict[str, list[str]]] = {}
    for each in reports:
        node = Untrusted(each["node"]).visible()
        if isinstance(each.get("text"), str) and isinstance(each.get("line"), str):
            name = re.sub(r"[^a-z0-9]+", "-", each["text"][:40].lower()).strip("-")
            own = texts_of.setdefault(node, {})
            if name in own or len(own) < _MOST_TEXTS:
                own.setdefault(name, []).append(each["line"])
        for key in ("gpus", "memory", "tools", "packages", "torch", "cuda", "nccl"):
            if each.get(key):
                figures[f"{node} {key}"] = _join_words(each[key])
    texts = {f"{node} {name}": "\n".join(own[name]) for node, own in texts_of.items() for name in own}
    if done.code != 0 or len({each["node"] for each in reports}) < len(day.nodes):
        return Outcome(
            state="failed", seen=f"not every node described itself: {done.last}", figures=figures, texts=texts
        )
    models = {str(figures.get(f"{node} gpus", "no GPU that torch can use")) for node in day.nodes}
    seen = f"{len(day.nodes)} nodes with {day.slots} slots: {'; '.join(sorted(models))}"
    state: State = "as expected" if all(f"{node} gpus" in figures for node in day.nodes) else "differs"
    return Outcome(state=state, seen=seen, figures=figures, texts=texts)


def check_nodes(day: GpuDay) -> Outcome:
    done = day.aboard("check", "check", day.write_config("check"), "--json", minutes=5)
    report = _find_json(done.output)
    if report is None:
        return Outcome(state="failed", seen=f"no report: {done.last}", texts={"check": done.output})
    findings = [each for each in report.get("findings", []) if isinstance(each, dict)]
    counts = {kind: sum(each.get("severity") == kind for each in findings) for kind in ("block", "warn", "info")}
    figures: dict[str, Figure] = {f"findings: {kind}": float(count) for kind, count in counts.items()}
    figures["seconds"] = round(done.ended - done.began, 1)
    for name, subject in report.get("subjects", {}).items():
        if subject.get("status") == "not tested":
            figures[f"not tested: {name}"] = str(subject.get("reason", ""))
    figures |= _read_bandwidth(report.get("multi_node_probes", {}).get("collective", {}))
    codes = ", ".join(sorted({str(each.get("code")) for each in findings})) or "no findings"
    state: State = "differs" if counts["block"] else "as expected"
    return Outcome(state=state, seen=f"exit code {done.code}: {codes}", figures=figures, texts={"check": done.output})


def run_nccl_tests(day: GpuDay) -> Outcome:
    tools = [str(day.results["machines"].figures.get(f"{node} tools", "")) for node in day.nodes]
    if not all("all_reduce_perf" in each.split(", ") for each in tools):
        return Outcome(state="not run", seen="all_reduce_perf of nccl-tests is not on the PATH of every node")
    words = ("all_reduce_perf", "-b", "8M", "-e", "256M", "-f", "2", "-g", str(day.slots))
    done = day.launch("nccl-tests", *words, options=("--ranks", "1", "--no-python", "--no-beacon"), minutes=3)
    lines = day.read_logs("nccl-tests")
    figures: dict[str, Figure] = {}
    for line in lines:
        if found := _AVERAGE.search(line["text"]):
            figures[f"{Untrusted(str(line.get('node'))).visible()}: average bus GB/s"] = float(found[1])
    texts = {"output": format_logs(lines)}
    if done.code != 0 or len(figures) < len(day.nodes):
        return Outcome(state="failed", seen=f"exit code {done.code}: {done.last}", figures=figures, texts=texts)
    seen = f"all_reduce_perf within each node; across nodes it needs MPI: see {ALL_REDUCE.name}"
    return Outcome(state="as expected", seen=seen, figures=figures, texts=texts)


def launch_all_reduce(day: GpuDay) -> Outcome:
    done = day.launch("all-reduce", "all_reduce.py", str(day.sizes.largest), env=_NCCL_DEBUG, minutes=3)
    lines = day.read_logs("all-reduce")
    reports = day.read_reports("all-reduce")
    figures: dict[str, Figure] = {}
    for each in reports:
        size, bus = read_number(each.get("size")), read_number(each.get("bus"))
        if size is not None and bus is not None:
            figures[f"all-reduce of {size / 1024:.0f} KiB: bus GB/s"] = round(bus, 3)
    right = {each["rank"] for each in reports if each.get("right") is True}
    figures["ranks with the right sum"] = f"{len(right)} of {day.world}"
    others = [line for line in lines if '"piece"' not in line["text"]]
    texts = {"output": format_logs(others), "aboard": done.output}
    figures["flight record"], texts["flight-record"] = _judge_dumps(day, reports)
    state: State = "as expected" if done.code == 0 and len(right) == day.world else "failed"
    seen = f"{len(right)} of {day.world} ranks summed right; flight record: {figures['flight record']}"
    return Outcome(
        state=state, seen=seen if state == "as expected" else f"{seen}; {done.last}", figures=figures, texts=texts
    )


def _judge_dumps(day: GpuDay, reports: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """What `aboard why --log` says of the dumps that ranks sent in pieces, in a word and in full."""
    pieces: dict[int, dict[int, str]] = {}
    why = "no rank sent one"
    for each in reports:
        number, piece = read_number(each.get("number")), each.get("piece")
        if number is not None and isinstance(piece, str) and isinstance(each["rank"], int):
            pieces.setdefault(each["rank"], {})[int(number)] = piece
        elif isinstance(each.get("dump"), str):
            why = Untrusted(each["dump"]).visible(120)
    folder = day.folder / "dumps"
    folder.mkdir(exist_ok=True)
    paths = []
    for rank, parts in sorted(pieces.items()):
        with suppress(ValueError, zlib.error):
            packed = base64.b64decode("".join(parts[number] for number in sorted(parts)))
            path = folder / f"nccl_trace_rank_{rank}"
            path.write_bytes(zlib.decompressobj().decompress(packed, _MOST_DUMP))
            paths.append(str(path))
    if not paths:
        return f"not run: {why}", ""
    judged = day.aboard("all-reduce", "why", "--log", *paths, minutes=2)
    words = {0: "read, no trouble", 1: "unknown trouble", 2: "a verdict on a healthy run"}
    return f"{len(paths)} dumps: {words.get(judged.code or 0, f'exit code {judged.code}')}", judged.output


def _find_json(output: str) -> dict[str, Any] | None:
    """The JSON document of an output that may have notes before it."""
    with suppress(ValueError, RecursionError):
        read = json.loads(output[output.index("{") :])
        return read if isinstance(read, dict) else None
    return None


def _read_bandwidth(collective: Mapping[str, Any]) -> dict[str, Figure]:
    rows = [row for row in collective.get("rows") or [] if row.get("op") == "all_reduce"]
    if not rows:
        return {}
    size, bus = read_number(rows[-1].get("size")), read_number(rows[-1].get("bus"))
    return (
        {} if size is None or bus is None else {f"check: all-reduce of {size / 1024:.0f} KiB: bus GB/s": round(bus, 3)}
    )


def _join_words(value: Any) -> str:
    """A report's value as a line of words."""
    if isinstance(value, dict):
        value = [f"{key} {each}" for key, each in value.items()]
    words = list(map(str, value)) if isinstance(value, list) else [str(value)]
    counts = {word: words.count(word) for word in words}
    shown = [f"{count} × {word}" if count > 1 else word for word, count in counts.items()]
    return Untrusted(", ".join(shown)).visible(300)


ALL_REDUCE = DayRun(
    name="all-reduce",
    minutes=3,
    drop=0,
    proves="a launched script finds its GPUs and the other ranks over NCCL; its flight record can be read",
    perform=launch_all_reduce,
)
MACHINE_RUNS = (
    DayRun(
        name="machines",
        minutes=2,
        drop=0,
        proves="what this day ran on: raw nvidia-smi, topology, versions",
        perform=describe_machines,
    ),
    DayRun(name="check", minutes=5, drop=0, proves="the check passes on healthy GPU nodes", perform=check_nodes),
    DayRun(
        name="nccl-tests",
        minutes=3,
        drop=2,
        proves="the bandwidth of the check is that of nccl-tests",
        perform=run_nccl_tests,
        needs=("machines",),
    ),
    ALL_REDUCE,
)
