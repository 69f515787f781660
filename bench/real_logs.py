"""Real logs of failing and healthy runs, which are not part of this repository: how many get the right answer.

`python bench/real_logs.py --logs DIR [--quick] [--json FILE]`. DIR has logs and expect.tsv: for each log a regular
expression that a right answer contains, HEALTHY, or SKIP. Each log is copied to `log.txt`, since the name of a file may
give the answer away. Right: the pattern is in the first finding and its consequences, at most 40 lines, above `info`.
Silent: exit code 0 for a failing log. Exit 0 only if every limit holds; `--quick` skips logs of more than 100 kB.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from figures import Figures

RIGHT, SILENT = 0.80, 0.03
MOST_LINES = 40
QUICK_BYTES = 100_000
SECONDS = 60
_ALARM = re.compile(r"^[✗!] ", re.MULTILINE)


def list_logs(directory: Path, *, quick: bool) -> Iterator[tuple[Path, str]]:
    """Each log with what is expected of it."""
    for line in (directory / "expect.tsv").read_text("utf-8").splitlines()[1:]:
        name, expected = line.split("\t")
        log = directory / name
        if expected != "SKIP" and not (quick and log.stat().st_size > QUICK_BYTES):
            yield log, expected


def score_log(log: Path, expected: str) -> tuple[str, str]:
    """Its score (right, wrong, silent; clean or alarm for a healthy log), and the first line of the answer."""
    with tempfile.TemporaryDirectory() as home:
        shutil.copyfile(log, Path(home, "log.txt"))
        env = {**os.environ, "HOME": home, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "80", "PYTHONUTF8": "1"}
        answer = subprocess.run(
            [sys.executable, "-m", "aboard", "why", "--log", "log.txt"],
            cwd=home, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    output = answer.stdout.decode("utf-8", "replace")
    shown = output.partition("\n")[0]
    alarm = answer.returncode != 0 or _ALARM.search(output) is not None
    if expected == "HEALTHY":
        return "alarm" if alarm else "clean", shown
    if not alarm:
        return "silent", shown
    # A finding ends with an empty line.
    first = "\n".join(output.strip().partition("\n\n")[0].splitlines()[:MOST_LINES])
    return "right" if re.search(expected, first, re.IGNORECASE) else "wrong", shown


def measure(figures: Figures, directory: Path, *, quick: bool) -> None:
    count: Counter[str] = Counter()
    for log, expected in list_logs(directory, quick=quick):
        score, shown = score_log(log, expected)
        count[score] += 1
        if score not in ("right", "clean"):
            print(f"{score:7} {log.name}: {shown}", flush=True)
    failing = sum(count[score] for score in ("right", "wrong", "silent")) or 1
    figures.add("failing logs without the right answer", 1 - count["right"] / failing, 1 - RIGHT, note=f"of {failing}")
    figures.add(
        "failing logs with no answer", count["silent"] / failing, SILENT, note=f"{count['silent']} of {failing}"
    )
    figures.add("false alarms on healthy logs", count["alarm"], 0, note=f"of {count['alarm'] + count['clean']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", required=True, type=Path, metavar="DIR", help="a directory of logs with expect.tsv")
    parser.add_argument("--quick", action="store_true", help="skip logs of more than 100 kB")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    options = parser.parse_args()
    measured = Figures("real logs")
    measure(measured, options.logs, quick=options.quick)
    sys.exit(measured.finish(options.json))
