"""Nodes that answer garbage, floods, another version or nothing harm nobody else: they become findings."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from deadlines import within
from launching import build_sandbox

from aboard.sandbox import Host, Sandbox

pytestmark = pytest.mark.ground

# Each takes the place of python3 on one node. The bootstrap's marker is in what they read, so they can play along.
PLAY = """#!/usr/bin/python3
import json, os, re, sys
for _ in range(2):
    sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
marker = re.search(rb"main\\(b'\\\\n(<aboard [0-9a-f]+>)", sys.stdin.buffer.readline())[1]
def frame(message):
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, "big") + body
hello = {{"hello": 1, "hostname": "evil", "user": "evil", "python": "3.11", "address": ""}}
out = sys.stdout.buffer
out.write(b"\\n" + marker + b"\\n")
{act}
out.flush()
sys.stdin.buffer.read()
"""
FLOOD = "try:\n    while True:\n        out.write(b'x' * 1048576)\nexcept BrokenPipeError:\n    os._exit(0)"
# Answers each question, with values of the wrong types.
NONSENSE = """
out.write(frame(hello))
out.flush()
while size := sys.stdin.buffer.read(4):
    question = json.loads(sys.stdin.buffer.read(int.from_bytes(size, "big")))
    out.write(frame({"re": question["id"], "wall": {}, "files": 7, "code": "no"}))
    out.flush()
"""

HOSTILE = {
    "n2": ("#!/bin/sh\nexec head -c 1000000 /dev/urandom\n", {"reach-shell-noise"}),
    "n3": ("#!/bin/sh\nexec head -c 10G /dev/zero\n", {"reach-shell-noise"}),
    "n4": (PLAY.format(act="out.write(frame({**hello, 'hello': 99}))"), {"reach-wrong-version"}),
    "n5": ("#!/bin/sh\nexec sleep 3600\n", {"reach-silent"}),
    "n6": (PLAY.format(act=FLOOD), {"reach-garbage"}),
    "n7": (PLAY.format(act="out.write(frame(hello))\n" + FLOOD), {"reach-garbage"}),
    "n8": (PLAY.format(act=NONSENSE), {"reach-garbage"}),
    "n9": ("#!/bin/sh\nexit 3\n", {"reach-garbage"}),
}
HEALTHY = ("n1", "n10")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Sandbox]:
    """Ten nodes, eight of them hostile."""
    with build_sandbox("hostile", nodes=10) as box:
        for node, (script, _codes) in HOSTILE.items():
            _replace_python(box.host(node), script)
        yield box


def test_hostile_nodes(hosts: Sandbox) -> None:
    """Each hostile node is named with its own reason; the others are served; the head's memory stays small."""
    # One timeout for the silent one, side by side with all others. 600 MB of address space: a head that swallowed a
    # flood would be out of it.
    with within(30):
        done = hosts.head.run(["prlimit", "--as=600000000", "aboard", "check", "n[1-10]", "--json"], timeout=120)
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 2
    reached = {node["name"] for node in report["nodes"] if node["reached"]}
    assert reached == set(HEALTHY)
    found = {node: {finding["code"] for finding in report["findings"] if node in finding["nodes"]} for node in HOSTILE}
    assert found == {node: codes for node, (_script, codes) in HOSTILE.items()}
    assert hosts.head.run(["pgrep", "-u", "crew", "-a", "ssh"]).stdout == ""


def _replace_python(host: Host, script: str) -> None:
    host.run(["sh", "-c", "cat > /usr/local/bin/python3 && chmod 755 /usr/local/bin/python3"], root=True, input=script)
