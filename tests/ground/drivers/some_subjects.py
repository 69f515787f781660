"""Checks some subjects only and prints JSON: argv is full or quick, comma-separated subjects, then the nodes.

Words with a `=` override keys as `--set` does.
"""

import asyncio
import json
import sys
from importlib import import_module

from aboard.commands.shared.json_output import to_plain_value
from aboard.config.cluster_loader import load_cluster
from aboard.config.this_machine import inspect_this_machine
from aboard.engine.check.check_cluster import check_cluster

how, subjects, *words = sys.argv[1:]
cluster = load_cluster(
    [word for word in words if "=" not in word],
    sets=[word for word in words if "=" in word],
    here=inspect_this_machine(),
)
chosen = [import_module(f"aboard.doctor.{name}.subject").SUBJECT for name in subjects.split(",")]
report = asyncio.run(check_cluster(cluster, chosen, quick=how == "quick"))
findings = to_plain_value(report.findings)
print(json.dumps({"seconds": report.seconds, "findings": findings}, indent=1))
