"""`aboard sync` to real hosts with disks of their own: the same tree everywhere, and nothing outside of it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deadlines import wait_until

from aboard.sandbox import Host, Sandbox
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.host.disk import DiskFull
from aboard.sandbox.faults.network.links import LinkRateLimit
from aboard.transport.ssh import FAST_CIPHER

pytestmark = pytest.mark.ground

TREE = "/private/tree"
# Small files, a large one, and names that a shell, a terminal or a decoder would stumble over.
MAKE = r"""
import os, sys
root, small, large = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
names = ["new\nline", "$(touch ~/x)", "'q' \"d\" `id`", "-rf", "; rm -rf ~", "\x1b[31mred", os.fsdecode(b"\xff\xfe")]
for name in [*names, *(f"d{number // 100}/f{number}" for number in range(small))]:
    os.makedirs(os.path.dirname(f"{root}/{name}"), exist_ok=True)
    with open(f"{root}/{name}", "wb") as file:
        file.write(os.urandom(1000))
with open(f"{root}/large", "wb") as file:
    file.write(os.urandom(large))
os.makedirs(f"{root}/empty")
os.symlink("d0/f1", f"{root}/link")
os.symlink("/etc/passwd", f"{root}/away")
os.chmod(f"{root}/-rf", 0o750)
"""
# Every path with its mode, time and content; temporary files of ours are left out.
DESCRIBE = r"""
import hashlib, json, os, sys
found = {}
for folder, folders, files in os.walk(sys.argv[1]):
    for name in (*folders, *files):
        path = os.path.join(folder, name)
        status = os.lstat(path)
        content = os.readlink(path) if os.path.islink(path) else ""
        if os.path.isfile(path) and not os.path.islink(path):
            content = hashlib.sha256(open(path, "rb").read()).hexdigest()
        if not name.startswith(".aboard-"):
            when = 0 if os.path.islink(path) else status.st_mtime_ns
            found[os.path.relpath(path, sys.argv[1])] = [status.st_mode, when, content]
print(json.dumps(found))
"""


@pytest.fixture
def clean(box: Sandbox) -> Iterator[None]:
    """What a test leaves on the disks is gone after it."""
    yield
    for host in (box.head, *box.nodes):
        host.run(["rm", "-rf", TREE, "/private/outside", "/private/job"], root=True)
        host.run(["sh", "-c", "rm -rf ~/.cache/aboard"])


def make_tree(box: Sandbox, *, small: int = 300, large: int = 3_000_000) -> dict[str, Any]:
    box.head.run([sys.executable, "-c", MAKE, TREE, str(small), str(large)]).check_returncode()
    return describe(box.head)


def describe(host: Host) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.run([sys.executable, "-c", DESCRIBE, TREE]).stdout)
    return found


def sync(box: Sandbox, *words: str) -> tuple[int, dict[str, Any]]:
    done = box.head.run(["aboard", "sync", TREE, "--json", *words])
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["nodes"]


def test_a_node_that_fails_is_named_and_stops_no_other(box: Sandbox, clean: None) -> None:
    """An unknown host, a full disk and a directory of another user; the fourth node has the whole tree."""
    tree = make_tree(box)
    box.host("n2").run(["install", "-d", "-m", "0755", TREE], root=True)
    with inject_temporarily(box, box.host("n3"), DiskFull(path="/private", free_mib=2)):
        code, nodes = sync(box, "--on", "n[1-3]", "--on", "n99")
    assert code == 1
    codes = {name: node["error"] and node["error"]["code"] for name, node in nodes.items()}
    assert codes.pop("n99").startswith("reach-")
    assert codes == {"n1": None, "n2": "spread-denied", "n3": "spread-disk-full"}
    assert describe(box.host("n1")) == tree
    code, nodes = sync(box, "--on", "n1")
    assert (code, nodes["n1"]["up_to_date"]) == (0, True)


def test_a_link_in_the_target_leads_nowhere(box: Sandbox, clean: None) -> None:
    """A link to another directory is replaced by the tree's own; what it pointed to stays as it was."""
    tree = make_tree(box)
    n1 = box.host("n1")
    n1.run(["sh", "-c", f"mkdir -p {TREE} /private/outside && echo mine > /private/outside/f1"])
    n1.run(["ln", "-s", "/private/outside", f"{TREE}/d0"])
    n1.run(["ln", "-s", "/private/outside/f1", f"{TREE}/large"])
    n1.run(["mkdir", f"{TREE}/extra"])
    code, _nodes = sync(box, "--on", "n1", "--delete")
    assert code == 0
    assert describe(n1) == tree
    assert n1.run(["sh", "-c", "cd /private/outside && ls -A && cat f1"]).stdout == "f1\nmine\n"


def test_a_kill_in_the_middle_leaves_whole_files(box: Sandbox, clean: None) -> None:
    """Whatever has its final name is whole; the next sync sends only the rest."""
    tree = make_tree(box, small=3000, large=20_000_000)
    n1 = box.host("n1")
    there = Path(f"/proc/{n1.pid}/root{TREE}")

    def has_part() -> bool:
        return any(part.stat().st_size > 5_000_000 for part in there.glob(".aboard-*.part"))

    with inject_temporarily(box, n1, LinkRateLimit(mbit=80)):
        argv = ["aboard", "sync", TREE, "--on", "n1"]
        with box.head.popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            wait_until(has_part, 60)
            process.kill()
        assert not (there / "large").exists()
        sums = {path: entry[2] for path, entry in tree.items()}
        assert all(sums[path] == entry[2] for path, entry in describe(n1).items())
        code, nodes = sync(box, "--on", "n1")
    assert code == 0
    assert nodes["n1"]["sent_bytes"] < 16_000_000
    assert describe(n1) == tree
    assert not list(there.glob(".aboard-*"))


def test_launch_sends_the_working_directory_and_back_collects_results(box: Sandbox, clean: None) -> None:
    """A script that only the head has runs on the nodes, and what it wrote there comes back."""
    script = "import os, socket\nopen('result.txt', 'w').write(socket.gethostname())\nprint('ran', os.getcwd())\n"
    box.head.run(["sh", "-c", "mkdir -p /private/job && cat > /private/job/job.py"], input=script)
    nodes = f"cluster:\n  python: {sys.executable}\n  nodes: ['n[1-2] slots=1']\n"
    box.head.run(["sh", "-c", "cd /private/job && cat > aboard.yaml && aboard allow"], input=nodes)
    refused = box.head.run(
        ["sh", "-c", "head -c 2000000 /dev/zero > big; aboard launch --sync --sync-limit 1MB -- job.py; rm big"],
        cwd="/private/job",
    )
    assert "above the limit of" in refused.stderr
    done = box.head.run(["aboard", "launch", "--sync", "--", "job.py"], cwd="/private/job", timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sync: 2 files," in done.stderr
    # Two paths in one directory: neither leaves a mark there.
    data = ["aboard", "sync", "--data", "job.py", "--data", "more", "--on", "n[1-2]"]
    box.head.run(["sh", "-c", f"echo x > more && echo more > .gitignore && {' '.join(data)}"], cwd="/private/job")
    planned = box.head.run(["aboard", "sync", "--dry-run"], cwd="/private/job").stdout
    assert "left out, since .gitignore names it: 1 file, 2 B: more (2 B)" in planned
    for node in box.nodes[:2]:
        assert set(node.run(["ls", "-A", "/private/job"]).stdout.split()) == {
            *("aboard.yaml", "job.py", "more", "result.txt"),
        }
    back = box.head.run(["aboard", "sync", "--back", "result.txt"], cwd="/private/job")
    assert back.returncode == 0, back.stdout + back.stderr
    results = box.head.run(
        ["sh", "-c", "cd back && cat n1/result.txt && echo && cat n2/result.txt"], cwd="/private/job"
    )
    assert results.stdout == "n1\nn2"


CHOOSE = "import asyncio; from aboard.transport.ssh import *; print(asyncio.run(choose_cipher(Node(name='n1'))))"


def test_the_users_ciphers_stay(box: Sandbox) -> None:
    """A sync offers a faster cipher first, and the same ones as ssh does; ciphers in ssh_config are left alone."""
    if " aes " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no instructions for AES")
    ours = box.head.run([sys.executable, "-c", CHOOSE]).stdout
    offered = box.head.run(["ssh", "-G", "n1"]).stdout.partition("\nciphers ")[2].split()[0].split(",")
    assert f"Ciphers={FAST_CIPHER}," in ours
    assert sorted(ours.partition("Ciphers=")[2].rstrip("')\n").split(",")) == sorted(offered)
    write = "cat > /etc/ssh/ssh_config.d/60-ciphers.conf"
    try:
        box.head.run(["sh", "-c", write], root=True, input="Ciphers aes256-ctr,aes128-gcm@openssh.com\n")
        assert box.head.run([sys.executable, "-c", CHOOSE]).stdout == "()\n"
    finally:
        box.head.run(["rm", "/etc/ssh/ssh_config.d/60-ciphers.conf"], root=True)
