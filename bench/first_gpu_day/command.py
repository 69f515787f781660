"""`scripts/first-gpu-day`: prints the table, asks, performs the runs, and writes the page and the bundle."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, strftime, time
from typing import Any

import yaml

from aboard.commands.shared.page.write_page import list_users
from aboard.diagnoses.untrusted import Untrusted, escape_text
from aboard.durable_files import write_atomically
from first_gpu_day.day_page import format_table, write_column, write_day_page
from first_gpu_day.day_run import DayRun, Outcome, Result, choose_runs, load_results, save_result
from first_gpu_day.fault_runs import FAULT_RUNS
from first_gpu_day.gpu_day import REAL, SIMULATED, GpuDay
from first_gpu_day.machine_runs import MACHINE_RUNS
from first_gpu_day.redacted_bundle import DayRedactor, list_files, pack_bundle
from first_gpu_day.speed_runs import SPEED_RUNS
from first_gpu_day.training_runs import FINETUNE_RUNS, SAVE_RUNS

# In order of risk: what the others build on comes first.
RUNS: tuple[DayRun, ...] = (*MACHINE_RUNS, *FINETUNE_RUNS, *SPEED_RUNS, *FAULT_RUNS, *SAVE_RUNS)
PAGE, BUNDLE, COLUMN = "first-gpu-day.html", "first-gpu-day.tar.gz", "column.md"
Ask = Callable[[str], bool]


def main(argv: Sequence[str]) -> int:
    options = _parse_options(argv)
    if options.simulated and os.geteuid() == 0:
        from first_gpu_day.simulated_day import simulate_day  # noqa: PLC0415 - hosts are built for --simulated only

        return simulate_day(argv, directory=options.directory, gpus=options.gpus)
    results = Path(options.directory) / "results"
    for name in options.again:
        (results / f"{name}.json").unlink(missing_ok=True)
    done = load_results(results, RUNS)
    chosen = [run for run in RUNS if not options.only or run.name in options.only]
    print(format_table(*choose_runs(chosen, done, options.minutes), len(done), options.minutes))
    if options.table:
        return 0
    day = _open_day(options)
    day.results = done
    if not options.faults and not sys.stdin.isatty():
        print("stdin is no terminal: nobody can be asked, so runs that ask first are not run")
    ask = _agree if options.faults else _ask_user
    try:
        perform_runs(day, chosen, minutes=options.minutes, ask=ask)
    except KeyboardInterrupt:
        print("\ninterrupted: start it again to continue", flush=True)
        return 130
    finally:
        write_day(day, RUNS)
    return 0


def perform_runs(day: GpuDay, runs: Sequence[DayRun], *, minutes: float, ask: Ask) -> None:
    """Performs what fits into the time that is left, and keeps each result as soon as it is there."""
    end = monotonic() + 60 * minutes
    while True:
        kept, dropped = choose_runs(runs, day.results, (end - monotonic()) / 60 if minutes else 0)
        if not kept:
            for run in dropped:
                print(f"dropped    {run.name}: it takes {run.minutes:g} minutes", flush=True)
            return
        run = kept[0]
        print(f"run        {run.name} ({run.minutes:g} min): {run.proves}", flush=True)
        began = monotonic()
        outcome = perform_run(day, run, ask)
        result = Result(
            name=run.name,
            state=outcome.state,
            seen=Untrusted(outcome.seen).visible(400),
            seconds=round(monotonic() - began, 1),
            at=time(),
            figures=outcome.figures,
            texts=outcome.texts,
        )
        save_result(day.folder / "results", result)
        day.results[run.name] = result
        print(f"{result.state:<10} {run.name}: {result.seen}", flush=True)


def perform_run(day: GpuDay, run: DayRun, ask: Ask) -> Outcome:
    """The run's outcome; one that can't be started or raises has one, too."""
    for name in run.needs:
        if name not in day.results or not day.results[name].useful:
            return Outcome(state="not run", seen=f"it needs {name}, which has no result")
    if run.question and not ask(run.question):
        return Outcome(state="not run", seen="nobody agreed to it")
    try:
        return run.perform(day)
    except Exception as error:  # noqa: BLE001 - two hours on borrowed machines don't end because one run has a bug
        return Outcome(state="failed", seen=escape_text(f"the script itself: {type(error).__name__}: {error}", 300))


def write_day(day: GpuDay, runs: Sequence[DayRun]) -> None:
    """The page, the bundle and the column of what is there so far."""
    redactor = DayRedactor(list_users())
    files = list_files(runs, day.results, redactor)
    results: dict[str, dict[str, Any]] = {name: redactor.result(each) for name, each in day.results.items()}
    when = strftime("%Y-%m-%d")
    kind = f"{len(day.nodes)} × {day.slots} {'simulated GPUs' if day.simulated else 'GPUs'}"
    files[PAGE] = write_day_page(runs, results, when=f"{when}, {kind}", simulated=day.simulated)
    files[COLUMN] = write_column(runs, results, title=f"{when}: {kind}")
    bundle = pack_bundle(files)
    for name, data in ((PAGE, files[PAGE].encode()), (COLUMN, files[COLUMN].encode()), (BUNDLE, bundle)):
        write_atomically(day.folder / name, data, sync=False, mode=0o600)
    print(f"page       {day.folder / PAGE}")
    size = f"{len(bundle) / 1024:.0f} KiB"
    print(f"bundle     {day.folder / BUNDLE}, {size}: nothing leaves this machine unless you send it")


def _open_day(options: argparse.Namespace) -> GpuDay:
    """The directory of the day, and the names and slots of its nodes, as a launch would use them."""
    folder = Path(options.directory).absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    sizes = SIMULATED if options.simulated else REAL
    cluster = _read_cluster(options.cluster)
    day = GpuDay(
        folder=folder, cluster=cluster, sizes=sizes, simulated=options.simulated, torchtitan=options.torchtitan
    )
    day.copy_programs()
    config = day.write_config("day")
    plan = day.ask("day", "launch", config, "--check", "none", "--dry-run", "--json", "--", "all_reduce.py")
    if not isinstance(plan, dict) or not plan.get("nodes"):
        sys.exit(f"no plan for these nodes; type: aboard launch {config} --dry-run -- true")
    day.nodes = tuple(node["name"] for node in plan["nodes"])
    day.slots = len(plan["nodes"][0]["starts"])
    if len(day.nodes) != 2:
        sys.exit(f"a first day has 2 nodes, and these are {len(day.nodes)}: name two in the file's cluster section")
    sent = day.aboard("day", "sync", "--on", config, str(folder / "programs"), minutes=5)
    if sent.code != 0:
        sys.exit(f"the programs of the day can't be copied to the nodes:\n{sent.output[-2000:]}")
    return day


def _read_cluster(path: str) -> dict[str, Any]:
    """The cluster section of the user's file; relative paths in it start at the file."""
    document = yaml.safe_load(Path(path).read_text("utf-8"))
    cluster = document.get("cluster") if isinstance(document, dict) else None
    if not isinstance(cluster, dict):
        sys.exit(f"{path} has no section cluster; `aboard init` writes one")
    if hostfile := cluster.get("hostfile"):
        cluster["hostfile"] = str(Path(path).absolute().parent / hostfile)
    return cluster


def _ask_user(question: str) -> bool:
    if not sys.stdin.isatty():
        return False
    return input(f"ask        {question}. Do it? [y/N] ").strip().lower() in ("y", "yes")


def _agree(_question: str) -> bool:
    return True


def _parse_options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="first-gpu-day", description=__doc__)
    parser.add_argument(
        "cluster", nargs="?", default="aboard.yaml", help="the file with your two nodes (./aboard.yaml)"
    )
    parser.add_argument("--directory", default="first-gpu-day", help="where all of the day is kept (./first-gpu-day)")
    parser.add_argument("--minutes", type=float, default=120, help="the time that you have (120)")
    parser.add_argument("--table", action="store_true", help="print the runs and their minutes, and end")
    parser.add_argument("--only", action="append", default=[], choices=[run.name for run in RUNS], help="only this run")
    parser.add_argument(
        "--again", action="append", default=[], choices=[run.name for run in RUNS], help="repeat this run"
    )
    parser.add_argument("--faults", action="store_true", help="agree to all faults now, instead of being asked")
    parser.add_argument("--torchtitan", default="", metavar="DIR", help="a checkout of torchtitan, on every node")
    parser.add_argument("--simulated", action="store_true", help="as root: build two hosts with simulated GPUs for it")
    parser.add_argument("--gpus", type=int, default=2, help="with --simulated: GPUs of a host (2)")
    return parser.parse_args(argv)
