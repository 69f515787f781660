"""From bare hosts to an exported model: the commands that a user types, and nothing else."""

import base64
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from time import monotonic

from aboard.sandbox import Host, Sandbox
from figures import Figures

ROOT = Path(__file__).parents[1]
HOME = "/home/crew"
VENV = f"{HOME}/venv"
PROJECT = f"{HOME}/project"
ACCESS = ("--identity", f"{HOME}/admin.pem", "--fingerprints", f"{HOME}/fingerprints")
STEPS = 6
TIMEOUT = 900.0
# Ranks share two cores: threads that spin for each other would take minutes.
ENV = {"VIRTUAL_ENV": VENV, "PATH": f"{VENV}/bin:/usr/local/bin:/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
TRAIN = ("--set", f"train.max_steps={STEPS}", "--set", "train.save_steps=3")
# Every file of a home and of /etc by owner, mode, link target and hash; synced directories are not trust's.
LIST_FILES = (
    "cd / && find home etc -xdev ! -type d -printf '%p %y %m %U %l\\n' -type f -exec sha256sum {} + | sort;"
    " find home etc -xdev -type d -printf '%p %m %U\\n' | sort"
)


def measure_bringup(figures: Figures, *, nodes: int) -> None:
    """Types init → trust → sync --env → check → train → export on bare hosts, twice."""
    with _build_bare_sandbox(nodes) as box:
        _prepare_head(box.head)
        began = monotonic()
        first = _bring_up(box.head, "first")
        seconds = monotonic() - began
        second = _bring_up(box.head, "second")
    figures.add(f"{nodes} bare hosts to an exported model", seconds, TIMEOUT, unit="s", note="6 commands")
    figures.add("exports of two passes that differ", float(first != second), 0)


def measure_undo(figures: Figures, *, nodes: int) -> None:
    """Compares every file before `trust --mesh` and after `trust --undo`."""
    with _build_bare_sandbox(nodes) as box:
        figures.add("files that trust --mesh, then --undo changed", float(_count_undo_differences(box)), 0)


def measure_faults(figures: Figures, *, nodes: int) -> None:
    """Breaks three hosts; `trust` and `sync` name them and go on with the others."""
    with _build_bare_sandbox(nodes) as box:
        figures.add("faults that were not named, or stopped other hosts", float(_count_unnamed_faults(box)), 0)


def _build_bare_sandbox(nodes: int) -> Sandbox:
    return Sandbox.up(f"bench-bringup-{os.getpid()}", nodes=nodes, slots=1, bare=True, temporary=True)


def _prepare_head(head: Host) -> None:
    """A virtual environment and the example project, on the head only."""
    _type(head, sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", VENV)
    _unpack(head, _build_wheel(), f"{HOME}/wheels")
    _type(head, "sh", "-c", f"{VENV}/bin/python -m pip install -q --no-index --no-deps {HOME}/wheels/*.whl")
    _unpack(head, ROOT / "examples" / "finetune", PROJECT)
    _type(head, f"{VENV}/bin/python", "make_data.py", cwd=PROJECT)
    _type(head, f"{VENV}/bin/python", "make_model.py", cwd=PROJECT)


def _bring_up(head: Host, name: str) -> dict[str, str]:
    """Types the commands; returns the exported files by hash."""
    _aboard(head, "init", "--yes", "--hostfile", f"{HOME}/hostfile")
    _aboard(head, "trust", *ACCESS)
    _aboard(head, "sync", "--env")
    _aboard(head, "check")
    _aboard(head, "train", *TRAIN, "--set", f"train.output_dir={name}")
    run = _aboard(head, "status").splitlines()[1].split()[0]
    _aboard(head, "export", run, "--to", f"trained-{name}")
    sums = _type(head, "sh", "-c", "sha256sum *", cwd=f"{PROJECT}/trained-{name}")
    return {line.split(maxsplit=1)[1]: line.split()[0] for line in sums.splitlines()}


def _count_undo_differences(box: Sandbox) -> int:
    _type(box.head, "mkdir", PROJECT)
    before = {host.name: _list_files(host) for host in box.hosts.values()}
    words = ("--hostfile", f"{HOME}/hostfile")
    _aboard(
        box.head, "trust", *words, "--identity", f"{HOME}/admin.pem", "--fingerprints", f"{HOME}/fingerprints", "--mesh"
    )
    changed = sum(len(before[host.name] ^ _list_files(host)) for host in box.hosts.values())
    if not changed:
        sys.exit("trust --mesh changed nothing: the comparison is empty")
    _aboard(box.head, "trust", "--undo", *words)
    return sum(len(before[host.name] ^ _list_files(host)) for host in box.hosts.values())


def _list_files(host: Host) -> set[str]:
    lines = set(_type(host, "sh", "-c", LIST_FILES, root=True).splitlines())
    # The head keeps Aboard's own records there, as after any command.
    return {line for line in lines if "home/crew/.local" not in line}


def _count_unnamed_faults(box: Sandbox) -> int:
    """One host is off, one has another host key, one has a full disk; the others go on."""
    off, changed, full, *fine = [host.name for host in box.nodes]
    _unpack(box.head, ROOT / "examples" / "finetune", PROJECT)
    _aboard(box.head, "init", "--yes", "--hostfile", f"{HOME}/hostfile")
    box.host(off).kill_power()
    box.host(changed).ssh_host_key(new=True)
    trust = _try(box.head, "trust", *ACCESS)
    missed = 0
    for name in (off, changed):
        missed += trust.returncode == 0 or name not in trust.stdout
    box.host(full).run(["sh", "-c", f"mkdir -p {PROJECT}; chmod 755 {PROJECT}"])
    box.host(full).run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=1777", "tmpfs", PROJECT], root=True)
    sync = _try(box.head, "sync")
    for name in (off, changed, full):
        missed += sync.returncode == 0 or name not in sync.stdout
    for name in fine:
        missed += box.host(name).run(["test", "-s", f"{PROJECT}/make_data.py"]).returncode != 0
    return missed


def _aboard(head: Host, *words: str) -> str:
    return _type(head, "aboard", *words, cwd=PROJECT)


def _try(head: Host, *words: str) -> "subprocess.CompletedProcess[str]":
    return head.run(["aboard", *words], cwd=PROJECT, env=ENV, timeout=TIMEOUT)


def _type(host: Host, *argv: str, cwd: str = HOME, root: bool = False) -> str:
    done = host.run(list(argv), cwd=cwd, env=ENV, timeout=TIMEOUT, root=root)
    if done.returncode != 0:
        sys.exit(f"{' '.join(argv)} failed with {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def _unpack(host: Host, folder: Path, to: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(folder, arcname=".")
    script = f"mkdir -p {to} && base64 -d | tar -x --no-same-owner -C {to}"
    done = host.run(["sh", "-c", script], input=base64.b64encode(packed.getvalue()).decode())
    done.check_returncode()


def _build_wheel() -> Path:
    """The aboard of this checkout as a wheel; the environment that runs the bench has its build backend."""
    folder = Path(tempfile.mkdtemp(prefix="bench-wheel-"))
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "-w", str(folder), str(ROOT)], check=True)
    return folder
