"""A check of a few subjects only, as JSON: argv is full or quick, the subjects with commas, then what names the nodes.

Words with a `=` override keys as `--set` does.
"""

import asyncio
import json
import sys
from importlib import import_module

from aboard.config.cluster import load_cluster
from aboard.config.here import look_around
from aboard.flows.check import check
from aboard.ui.as_json import as_plain

how, subjects, *words = sys.argv[1:]
cluster = load_cluster(
    [word for word in words if "=" not in word], sets=[word for word in words if "=" in word], here=look_around()
)
chosen = [import_module(f"aboard.checks.{name}").SUBJECT for name in subjects.split(",")]
report = asyncio.run(check(cluster, chosen, quick=how == "quick"))
findings = as_plain(report.findings)
print(json.dumps({"seconds": report.seconds, "findings": findings}, indent=1))
