"""What a node with several ranks of the collective test runs: each rank as a child, and a list of their reports."""

from __future__ import annotations

import json
import subprocess
import sys

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from typing import Any


def run_ranks(task: dict[str, Any], code: list[str]) -> list[dict[str, Any]]:
    """Runs `python -c CODE TASK` for each rank; what each printed last is its report."""
    ranks = []
    for local in range(task["locals"]):
        own = json.dumps(dict(task, rank=task["rank"] + local, local=local))
        command = [sys.executable, "-c", *code, own]
        ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    reports = []
    for local, rank in enumerate(ranks):
        try:
            out = rank.communicate(timeout=task["within"])[0]
            reports.append(json.loads(find_last_line(out)))
        except (subprocess.TimeoutExpired, ValueError):
            rank.kill()
            error = find_last_line(rank.communicate()[1]) or "it ended without any message"
            reports.append({"rank": task["rank"] + local, "phase": "gone", "error": error})
    return reports


def find_last_line(output: bytes) -> str:
    return output.decode("utf-8", "replace").strip().rpartition("\n")[2]


if __name__ == "__main__":
    print(json.dumps({"ranks": run_ranks(json.loads(sys.argv[1]), sys.argv[2:])}))
