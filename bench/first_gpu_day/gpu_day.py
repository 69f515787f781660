"""What the runs of a day share: its directory, its nodes, `aboard` with records of its own, and what ranks report."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any

from aboard.diagnoses.untrusted import Untrusted
from first_gpu_day.day_run import Result

PROGRAMS = Path(__file__).with_name("programs")
EXAMPLE = Path(__file__).parents[2] / "examples" / "finetune"
# A line of a rank that is meant for this script.
MARK = "first-gpu-day "
# Of each kind of output, its end: a day's bundle is for mail.
MOST_TEXT = 400_000
# Of a run's output, whatever its ranks print.
MOST_LINES, MOST_LOGS = 20_000, 64 << 20
_GRACE = 120.0


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the runs of a day are."""

    # Shapes of Llama, the largest first: hidden, layers, heads, groups of heads, intermediate, vocabulary.
    shapes: Mapping[str, tuple[int, int, int, int, int, int]]
    tokens: int
    steps: int
    finetune_steps: int
    # Bytes of the largest all-reduce.
    largest: int
    # How much longer a run may take than its minutes say.
    patience: float = 2.0
    # Of what tensors take / the estimate of it.
    near: tuple[float, float] = (0.8, 1.15)


REAL = Sizes(
    shapes={
        "8B": (4096, 32, 32, 8, 14336, 128256),
        "3B": (3072, 28, 24, 8, 8192, 128256),
        "1B": (2048, 16, 32, 8, 8192, 128256),
    },
    tokens=8192,
    steps=16,
    finetune_steps=20,
    largest=1 << 28,
)
SIMULATED = Sizes(
    shapes={"huge": (24576, 4, 64, 8, 65536, 128256), "tiny": (64, 2, 4, 2, 128, 1024)},
    tokens=128,
    steps=8,
    finetune_steps=6,
    largest=1 << 20,
    patience=10.0,
    # What the estimate leaves out weighs more in so small a model.
    near=(0.5, 1.5),
)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A finished `aboard` command: its exit code (None after its time), its output, and when it began and ended."""

    code: int | None
    output: str
    began: float
    ended: float

    @property
    def last(self) -> str:
        """Its last words, for a sentence."""
        lines = [line for line in self.output.splitlines() if line.strip()]
        return Untrusted(lines[-1].strip() if lines else "no output").visible(200)


@dataclass(kw_only=True)
class GpuDay:
    """A day in its directory: everything that it writes is below it."""

    folder: Path
    cluster: Mapping[str, Any]
    sizes: Sizes
    simulated: bool = False
    torchtitan: str = ""
    nodes: tuple[str, ...] = ()
    slots: int = 1
    results: dict[str, Result] = field(default_factory=dict)
    # Of memory, by what was asked: each takes an import of torch.
    estimates: dict[str, Mapping[str, float]] = field(default_factory=dict)

    def copy_programs(self) -> None:
        """The ranks' programs and the example: nodes have the directory of the day, and maybe no checkout."""
        shutil.copytree(PROGRAMS, self.folder / "programs", dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.pyc"))
        shutil.copytree(EXAMPLE, self.folder / "finetune", dirs_exist_ok=True)

    @property
    def world(self) -> int:
        return len(self.nodes) * self.slots

    def figure(self, run: str, name: str) -> float | None:
        """A number of an earlier run."""
        value = self.results[run].figures.get(name) if run in self.results else None
        return float(value) if isinstance(value, int | float) else None

    def write_config(self, name: str, **sections: Mapping[str, Any]) -> str:
        """A configuration with the day's cluster; JSON is YAML."""
        path = self.folder / "configs" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"cluster": self.cluster, **sections}, indent=1), "utf-8")
        return str(path)

    def aboard(self, run: str, *words: str, minutes: float) -> Command:
        """Runs `aboard` with the records of this run; it is interrupted as by Ctrl-C when its time is over."""
        argv = [sys.executable, "-m", "aboard", *words]
        path = self.folder / "output" / f"{run}.txt"
        path.parent.mkdir(exist_ok=True)
        began = time()
        with path.open("ab") as file:
            start = file.tell()
            process = subprocess.Popen(
                argv,
                cwd=self.folder / "programs",
                env=self._environment(run),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            code = _wait(process, 60 * minutes * self.sizes.patience)
        with path.open("rb") as file:
            file.seek(max(start, path.stat().st_size - MOST_TEXT))
            output = file.read(MOST_TEXT).decode("utf-8", "replace")
        return Command(code=code, output=output, began=began, ended=time())

    def launch(
        self, run: str, *command: str, minutes: float, options: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> Command:
        """`aboard launch` of a program on the day's nodes; env are variables of its ranks."""
        given = [word for name, value in (env or {}).items() for word in ("--env", f"{name}={value}")]
        words = ("launch", self.write_config(run), *options, *given, "--", *command)
        return self.aboard(run, *words, minutes=minutes)

    def ask(self, run: str, *words: str) -> Any:
        """The JSON that a command about the records of this run prints; None if it prints none."""
        done = subprocess.run(
            [sys.executable, "-m", "aboard", *words],
            cwd=self.folder,
            env=self._environment(run),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=300 * self.sizes.patience,
            check=False,
        )
        with suppress(ValueError):
            return json.loads(done.stdout)
        return None

    def read_logs(self, run: str, *words: str) -> list[dict[str, Any]]:
        """What the ranks of this run printed last, oldest first: texts have no control characters."""
        process = subprocess.Popen(
            [sys.executable, "-m", "aboard", "logs", "--json", "--no-fold", "-n", str(MOST_LINES), *words],
            env=self._environment(run),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        with process.stdout as pipe:
            output = pipe.read(MOST_LOGS)
        process.kill()
        process.wait()
        lines = []
        for line in output.decode("utf-8", "replace").splitlines():
            with suppress(ValueError, RecursionError):
                read = json.loads(line)
                if isinstance(read, dict) and isinstance(read.get("text"), str):
                    lines.append(read)
        return lines

    def read_reports(self, run: str) -> list[dict[str, Any]]:
        """What the day's programs reported on the ranks of this run."""
        return parse_reports(self.read_logs(run, "--grep", f"^{MARK}"))

    def read_metrics(self, run: str) -> list[dict[str, Any]]:
        """The trainer's log lines of the newest record of this run."""
        records = sorted((self.folder / "records" / run / "aboard" / "runs").glob("*/metrics.jsonl"))
        if not records:
            return []
        found = []
        for line in records[-1].read_text("utf-8", "replace").splitlines():
            with suppress(ValueError):
                read = json.loads(line)
                if isinstance(read, dict) and isinstance(read.get("figures"), dict):
                    found.append({**read["figures"], "step": read.get("step"), "seconds": read.get("seconds") or {}})
        return found

    def _environment(self, run: str) -> dict[str, str]:
        state = {"XDG_STATE_HOME": str(self.folder / "records" / run)}
        return {**os.environ, **state, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def parse_reports(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What programs of the day reported by lines with the mark; each has the `node` and `rank` that printed it.

    Anybody on a node can print such a line: the values are anything, and are shown only as `read_number` and
    `Untrusted` let them.
    """
    found = []
    for line in lines:
        text = line["text"]
        if text.startswith(MARK):
            with suppress(ValueError, RecursionError):
                read = json.loads(text.removeprefix(MARK))
                if isinstance(read, dict):
                    ranks = line.get("ranks") or [-1]
                    found.append({**read, "node": str(line.get("node", "")), "rank": ranks[0], "at": line.get("at")})
    return found


def read_number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with suppress(OverflowError):
        if math.isfinite(value):
            return float(value)
    return None


def format_logs(lines: Sequence[Mapping[str, Any]], most: int = MOST_TEXT) -> str:
    """The ranks' output as text: its end, if it is longer than that."""
    rows, size = [], 0
    for line in reversed(lines):
        row = f"{Untrusted(str(line.get('node', ''))).visible()} {line.get('ranks')} {line['text']}"
        size += len(row) + 1
        if size > most:
            rows.append("… what was before is left out")
            break
        rows.append(row)
    return "\n".join(reversed(rows))


def _wait(process: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    """The exit code; None if the time was over. Our own Ctrl-C reaches the command as well, which then cleans up."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        _stop(process)
        return None
    except KeyboardInterrupt:
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(_GRACE)
        _stop(process)
        raise


def _stop(process: "subprocess.Popen[bytes]") -> None:
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
