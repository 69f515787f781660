"""Commands and scripts that users of a small cluster type, through capture: what would start, against what should.

Each file of bench/script_cases is a case: its files, the command, and the plan or the refusal that is right. All run in
one sandbox of 2 nodes as `aboard launch --dry-run --capture --json -- COMMAND`. Front ends that are not installed are
stand-ins, which start the launcher that the real ones start; the case says so.
--quick runs the cases that are marked `quick`, and measures no time; `--only start` measures the time alone.
"""

import fnmatch
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from aboard.core.cluster.setup_commands import strip_setup
from aboard.core.plan.rank_variables import list_torchrun_variables
from aboard.lazy_dataclass import dataclass
from aboard.sandbox import Sandbox
from figures import Figures, main

# Not resolved: a virtual environment's interpreter is a symlink.
PYTHON = sys.executable
CASES = Path(__file__).with_name("script_cases")
SLOTS = 2
FOLDER = "/shared/cases"
PROGRAMS = "/usr/local/bin"
TIMEOUT = 180.0
MOST_WRONG = 4
ROUNDS = 5
_CODE = re.compile(r"^✗ ([a-z][a-z0-9-]+)|\[([a-z][a-z0-9]*(?:-[a-z0-9]+)+)\]", re.MULTILINE)
# They describe the rank, or the port that a dry run has chosen.
_RANK_VARIABLES = {*list_torchrun_variables(), "CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE"}
# Rank 0 says when it came to this.
_WRITE_TIME = "if os.environ['RANK'] == '0':\n    open('began', 'w').write(str(time.time()))\n"
_CLOCKS = {
    "first rank, without torch": f"import os, time\n{_WRITE_TIME}",
    "first all-reduce": "import os, time\nimport torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
    f"dist.all_reduce(torch.ones(1))\n{_WRITE_TIME}dist.destroy_process_group()\n",
}
_TYPED = "torchrun --nnodes 2 --nproc_per_node 2 clock.py"


class Verdict(Enum):
    """What a case showed; everything but `REFUSED` and `RIGHT` is a bug that its user does not see."""

    RIGHT = "right"
    REFUSED = "refused with a reason"
    SILENT = "silent difference"
    UNEXPLAINED = "failed without a code"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One file of script_cases. `plan` is None if the command must be refused with the code `refused`.

    `first` is the verdict of the first run of a case that was written blind. `stand_in` names a front end of ours.
    """

    name: str
    about: str
    command: tuple[str, ...]
    files: Mapping[str, str]
    programs: Mapping[str, str]
    prepare: str
    plan: Mapping[str, Any] | None
    refused: str
    needs: str
    stand_in: str
    first: str
    quick: bool


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a case showed, and in words what differs."""

    verdict: Verdict
    seen: str


def load_cases(*, quick: bool = False) -> list[Case]:
    cases = [_load_case(path) for path in sorted(CASES.glob("*.yaml"))]
    return [case for case in cases if case.quick or not quick]


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's only option
    """Compares the plans of cases with what is right, and the time to the first rank with that of a typed command."""
    cases = load_cases(quick=quick)
    with Sandbox.up(f"bench-scripts-{os.getpid()}", nodes=2, slots=SLOTS, temporary=True) as box:
        bench = ScriptCases(box)
        outcomes: dict[Verdict, list[Case]] = {verdict: [] for verdict in Verdict}
        skipped = 0
        for case in cases:
            if case.needs and not Path(case.needs).exists():
                skipped += 1
                print(f"    {case.name:<26} skipped: there is no {case.needs}", flush=True)
                continue
            began = time.monotonic()
            outcome = bench.run(case)
            outcomes[outcome.verdict].append(case)
            kind = f"; {case.stand_in} is a stand-in" if case.stand_in else ""
            told = f"    {case.name:<26} {outcome.verdict.value} ({time.monotonic() - began:.1f} s{kind})"
            print(told + (f"\n        {outcome.seen}" if outcome.verdict is not Verdict.RIGHT else ""), flush=True)
        if not quick:
            _add_times(figures, bench)
    right, total = len(outcomes[Verdict.RIGHT]), len(cases) - skipped
    firsts = Counter(case.first for case in cases if case.first)
    if firsts:
        print(f"    written blind, scored in their first run: {dict(firsts)}", flush=True)
    note_right = f"{right} right" + (f", {skipped} skipped" if skipped else "")
    figures.add(f"of {total} commands, not right", total - right, 0 if quick else MOST_WRONG, note=note_right)
    figures.add("of those, failed without a code", len(outcomes[Verdict.UNEXPLAINED]), 0)
    figures.add("silent differences", len(outcomes[Verdict.SILENT]), 0)


def measure_start(figures: Figures, quick: bool) -> None:  # noqa: FBT001, ARG001 - as of every section
    """Compares the time from a script's command to its ranks with that of its launcher's command, typed."""
    with Sandbox.up(f"bench-start-{os.getpid()}", nodes=2, slots=SLOTS, temporary=True) as box:
        _add_times(figures, ScriptCases(box))


def _add_times(figures: Figures, bench: "ScriptCases") -> None:
    for moment, program in _CLOCKS.items():
        ratio, note = bench.time_launches(program)
        figures.add(f"command to {moment}, captured / typed torchrun", ratio, 1.2, unit="×", note=note)


class ScriptCases:
    """A folder that all hosts of a sandbox share, in which one case after the other runs; `job` is for salloc."""

    def __init__(self, box: Sandbox, folder: str = FOLDER, job: Sequence[str] = ()) -> None:
        self._box = box
        self._folder = folder
        self._before = ("salloc", "--quiet", "--no-kill", *job) if job else ()
        self._options = ("--set", f"cluster.python={PYTHON}") if job else ()
        nodes = f"cluster:\n  python: {PYTHON}\n  nodes: ['n[1-2] slots={SLOTS}']\n"
        box.head.run(["mkdir", "-p", folder]).check_returncode()
        if not job:
            self._put("aboard.yaml", nodes)
            self._run_shell("aboard allow")
        typed = self._launch("--dry-run", "--json", "--", *shlex.split("torchrun --nproc_per_node 2 train.py"))
        plan = json.loads(typed.stdout)
        # What ranks get anyway.
        self._usual = {name: value for name, value in plan["env"].items() if name not in _RANK_VARIABLES}

    def run(self, case: Case) -> Outcome:
        return self.judge(case, self.start(case))

    def start(self, case: Case, *options: str) -> "subprocess.CompletedProcess[str] | None":
        """Runs its command up to the plan; None if that takes too long."""
        self._run_shell("find . -mindepth 1 -maxdepth 1 ! -name aboard.yaml -exec rm -rf {} +")
        for name, text in case.files.items():
            self._put(name, text)
        for name, text in case.programs.items():
            for host in self._box.nodes:
                script = f"cat > {PROGRAMS}/{name} && chmod 755 {PROGRAMS}/{name}"
                host.run(["sh", "-c", script], root=True, input=text).check_returncode()
        if case.prepare:
            self._run_shell(case.prepare)
        try:
            return self._launch("--dry-run", "--capture", "--json", *options, "--", *case.command)
        except subprocess.TimeoutExpired:
            return None
        finally:
            for name in case.programs:
                for host in self._box.nodes:
                    host.run(["rm", "-f", f"{PROGRAMS}/{name}"], root=True).check_returncode()

    def time_launches(self, program: str) -> tuple[float, str]:
        """Seconds from the command to the time that the program writes: by a script / by its launcher's command."""
        self._put("clock.py", program)
        self._put("run.sh", f"#!/bin/bash\nset -e\n{_TYPED}\n")
        ways = {"captured": ["bash", "run.sh"], "typed": shlex.split(_TYPED)}
        took: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, command in ways.items():
                self._run_shell("rm -f began")
                began = time.time()
                done = self._launch("--", *command)
                if done.returncode != 0:
                    sys.exit(f"{command} failed with {done.returncode}: {(done.stdout + done.stderr)[-3000:]}")
                took[way].append(float(self._run_shell("cat began")) - began)
        middle = {way: statistics.median(seconds) for way, seconds in took.items()}
        note = ", ".join(f"{way} {seconds:.2f} s" for way, seconds in middle.items())
        return middle["captured"] / middle["typed"], f"{note}; medians of {ROUNDS}"

    def judge(self, case: Case, done: "subprocess.CompletedProcess[str] | None") -> Outcome:
        if done is None:
            return Outcome(verdict=Verdict.UNEXPLAINED, seen=f"still running after {TIMEOUT:g} s")
        if case.plan is None and self._run_shell("ls -A started 2>/dev/null || true"):
            return Outcome(verdict=Verdict.SILENT, seen="something was started outside of the run")
        codes = [first or second for first, second in _CODE.findall(done.stderr)]
        if not done.stdout.startswith("{") or done.returncode != 0:
            said = " ".join(done.stderr.split())[-1500:]
            if not codes:
                return Outcome(verdict=Verdict.UNEXPLAINED, seen=said)
            verdict = Verdict.RIGHT if case.refused in codes else Verdict.REFUSED
            return Outcome(verdict=verdict, seen=f"{codes}: {said}")
        if case.plan is None:
            return Outcome(verdict=Verdict.SILENT, seen=f"expected {case.refused}, got {done.stdout[:1500]}")
        found = self._find_differences(case.plan, json.loads(done.stdout))
        return Outcome(verdict=Verdict.SILENT if found else Verdict.RIGHT, seen="; ".join(found))

    def _find_differences(self, expected: Mapping[str, Any], plan: Mapping[str, Any]) -> list[str]:
        """Compares ranks, program, directory and all variables that the script could have set."""
        nodes = plan["nodes"]
        argv = [expected.get("python", "BIN/python"), *expected["argv"]]
        cwd = str(PurePosixPath(self._folder, expected.get("cwd", "")))
        pairs: list[tuple[str, Any, Any]] = [
            ("ranks", [len(node["starts"]) for node in nodes], expected.get("ranks", [SLOTS, SLOTS])),
            ("nodes", [node["name"] for node in nodes], expected.get("nodes", ["n1", "n2"])),
            *([("the port", plan["master"]["port"], expected["port"])] if "port" in expected else ()),
            ("setup lines", _list_setup(_get_argv(nodes[0], 0)), expected.get("setup", "")),
        ]
        wanted = {name: str(value) for name, value in expected.get("env", {}).items()}
        for node in nodes:
            name = node["name"]
            pairs.append((f"cwd on {name}", node["cwd"], cwd))
            for local, start in enumerate(node["starts"]):
                # deepspeed tells each rank its number on its node.
                right = [word.replace("=LOCAL", f"={local}") for word in argv]
                seen = _fill(strip_setup(_get_argv(node, local)), self._folder)
                pairs.append((f"argv of rank {start['rank']}", seen, right))
            env = {**plan["env"], **node["env"], **node["starts"][0]["env"]}
            own = {key: value for key, value in env.items() if key not in _RANK_VARIABLES}
            of_node = {**wanted, **{key: str(value) for key, value in expected.get("env_of", {}).get(name, {}).items()}}
            pairs += self._compare_env(name, own, of_node)
        return [f"{what}: {seen!r} instead of {right!r}" for what, seen, right in pairs if seen != right]

    def _compare_env(self, node: str, env: Mapping[str, str], wanted: Mapping[str, str]) -> list[tuple[str, Any, Any]]:
        """`*` as a value accepts any; the name may be a pattern then."""
        free = [name for name, value in wanted.items() if value == "*"]
        right = {**self._usual, **{name: value for name, value in wanted.items() if value != "*"}}
        return [
            (f"{name} on {node}", _fill([env.get(name) or ""], self._folder)[0], right.get(name, ""))
            for name in sorted(env.keys() | right.keys())
            # In a job, ranks have those of a task.
            if not name.startswith("SLURM_") and not any(fnmatch.fnmatchcase(name, pattern) for pattern in free)
        ]

    def _launch(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [*self._before, "aboard", "launch", *self._options, *words]
        return self._box.head.run(command, cwd=self._folder, timeout=TIMEOUT)

    def _put(self, name: str, text: str) -> None:
        script = f"mkdir -p {shlex.quote(str(PurePosixPath(name).parent))} && cat > {shlex.quote(name)}"
        executable = f" && chmod 755 {shlex.quote(name)}" if text.startswith("#!") else ""
        done = self._box.head.run(["sh", "-c", script + executable], cwd=self._folder, input=text)
        assert done.returncode == 0, done.stderr

    def _run_shell(self, script: str) -> str:
        done = self._box.head.run(["sh", "-c", script], cwd=self._folder)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)


def _get_argv(node: Mapping[str, Any], local: int) -> tuple[str, ...]:
    return tuple(node["starts"][local].get("argv", node.get("argv")))


def _list_setup(argv: tuple[str, ...]) -> str:
    """The lines that a rank's shell runs before the program."""
    lines = argv[2] if strip_setup(argv) != argv else ""
    return "; ".join(shlex.split(line)[0] for line in re.findall(r"^eval (.*) >&2 \|\|", lines, re.MULTILINE))


def _fill(words: Sequence[str], folder: str) -> list[str]:
    """The words as a case has them, which doesn't know where its folder and the packages are."""
    site, programs = sysconfig.get_path("purelib"), Path(PYTHON).parent
    for place, name in ((folder, "FOLDER"), (site, "SITE"), (f"{programs}/python", "BIN/python")):
        words = [re.sub(r"^BIN/python[0-9.]+$", "BIN/python", word.replace(place, name)) for word in words]
    return list(words)


def _load_case(path: Path) -> Case:
    raw = yaml.safe_load(path.read_text())
    unknown = raw.keys() - {*Case.__annotations__}
    assert not unknown, f"{path.name}: {unknown}"
    assert ("plan" in raw) != ("refused" in raw), f"{path.name}: either a plan or the code of a refusal"
    return Case(
        name=path.stem,
        about=raw["about"],
        command=tuple(shlex.split(raw["command"])),
        files={name: text or "" for name, text in raw.get("files", {}).items()},
        programs=raw.get("programs", {}),
        prepare=raw.get("prepare", ""),
        plan=raw.get("plan"),
        refused=raw.get("refused", ""),
        needs=raw.get("needs", ""),
        stand_in=raw.get("stand_in", ""),
        first=raw.get("first", ""),
        quick=raw.get("quick", False),
    )


if __name__ == "__main__":
    main("scripts", measure, {"start": measure_start})
