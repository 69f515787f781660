"""Which Python and which script ranks run, on real hosts: from an environment that all, some or no nodes have."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadlines import slowness
from launching import PYTHON, build_sandbox
from small_wheels import write_base_python_script

from aboard.sandbox import Host, Sandbox

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("torch_b")]

JOB = "/shared/job"
SHOW = """
import os, sys
print("ran", sys.executable, os.environ.get("VIRTUAL_ENV"), os.environ["PATH"].split(":")[0], flush=True)
"""
DEEPSPEED = """
import shutil, sys, torch, deepspeed
if sys.argv[-1] == "compile":
    deepspeed.init_distributed(dist_backend="gloo")
else:
    torch.distributed.init_process_group("gloo")
total = torch.ones(1)
torch.distributed.all_reduce(total)
print(f"sum {int(total)}, ninja {shutil.which('ninja')}", flush=True)
torch.distributed.destroy_process_group()
"""
# What a user's system has: an interpreter outside of any environment.
BASE = "/private/base"
MAKE = {
    "venv": f"{BASE}/bin/python3 -m venv --without-pip --system-site-packages /private/venv",
    "conda": f"cd /private && mkdir -p conda/conda-meta conda/bin && ln -s {BASE}/bin/python3 conda/bin/python",
    # As pipx makes it: its mark, all that aboard needs, and no torch.
    "tool": f"""{PYTHON} -m venv --without-pip /private/tool && echo '{{}}' > /private/tool/pipx_metadata.json
        to=$(/private/tool/bin/python -c 'import site; print(site.getsitepackages()[0])')
        {PYTHON} -c 'import sys; print(*filter(lambda path: path.endswith("site-packages"), sys.path), sep="\\n")' |
        while read from; do for each in $from/*; do
            case $each in */torch*|*/functorch*) ;; *) [ -e $to/"${{each##*/}}" ] || ln -s "$each" $to/;; esac
        done; done""",
    "plain": f"mkdir -p /private/plain/bin && ln -s {BASE}/bin/python3 /private/plain/bin/python3",
}
PYTHONS = {
    "venv": "/private/venv/bin/python",
    "conda": "/private/conda/bin/python",
    "tool": "/private/tool/bin/python",
    "plain": "/private/plain/bin/python3",
}
ORIGINS = {"venv": "$VIRTUAL_ENV", "conda": "$CONDA_PREFIX", "plain": "runs aboard"}
NODES = {"all": ("n1", "n2"), "some": ("n1",), "none": ()}
# The tests may run in a virtual environment that sees the packages of its base.
NINJA = shutil.which("ninja", path=os.pathsep.join([str(Path(PYTHON).parent), f"{sys.base_prefix}/bin"]))


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    """Two nodes that have what the head has, except in /private, which is each host's own."""
    with build_sandbox("interpreter", nodes=2, slots=1) as made:
        for host in (made.head, *made.nodes):
            run(host, write_base_python_script(BASE))
        run(made.head, f"mkdir -p {JOB}")
        made.head.run(["tee", f"{JOB}/show.py"], input=SHOW).check_returncode()
        yield made


# On some nodes is both: one that has it, and one that lacks it. Other places are nightly for all kinds but one.
@pytest.mark.parametrize(
    ("kind", "where"),
    [
        pytest.param(kind, where, marks=[] if where == "some" or kind == "venv" else pytest.mark.nightly)
        for kind in MAKE
        for where in NODES
    ],
)
def test_ranks_get_the_environment_of_the_head_where_all_nodes_have_it(box: Sandbox, kind: str, where: str) -> None:
    """On some only, the launch stops and names the others; on none, ranks get python3, and a finding says so.

    A tool's own environment without torch is never offered.
    """
    make(box, kind, NODES[where])
    done = aboard(box, kind, "launch", "--dry-run", "--json", "n1", "n2", "--", "show.py")
    chosen = {node["name"]: node["interpreter"] for node in json.loads(done.stdout)["nodes"]}
    own = {"path": PYTHONS[kind], "origin": ORIGINS.get(kind)}
    login = {"path": "python3", "origin": "login shell"}
    if kind == "tool":
        assert chosen == {"n1": login, "n2": login}
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert chosen == {name: own if name in NODES[where] else login for name in ("n1", "n2")}
        assert done.returncode == (2 if where == "some" else 0)
    if where == "some" and kind != "tool":
        assert "✗ software-interpreter  n2\n" in done.stderr
        assert f"{PYTHONS[kind]} is on n1, but not on n2" in " ".join(done.stderr.split())
        assert "--set cluster.python=python3" in done.stderr
    if where == "none" and kind != "tool":
        assert "! software-interpreter-login  n[1-2]\n" in done.stderr


def test_ranks_run_in_the_virtual_environment_with_its_tools_first_on_path(box: Sandbox) -> None:
    """As `activate` would make it, and `python` means its interpreter."""
    make(box, "venv", ("n1", "n2"))
    done = aboard(box, "venv", "launch", "n1", "n2", "--", "python", "-u", "show.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ran /private/venv/bin/python /private/venv /private/venv/bin" in done.stdout


def test_the_fix_of_a_missing_environment_brings_it_there(box: Sandbox) -> None:
    """The command as it is printed, typed on the head."""
    make(box, "venv", ("n1",))
    done = aboard(box, "venv", "check", "--only", "software", "n1", "n2")
    assert done.returncode == 2
    fix = next(
        line.partition("fix: ")[2] for line in done.stdout.splitlines() if "software-interpreter n2 fix: aboard" in line
    )
    assert fix.partition("    #")[0] == "aboard sync --env --on n2"
    assert aboard(box, "venv", "sync", "--env", "--on", "n2").returncode == 0
    done = aboard(box, "venv", "check", "--only", "software", "n1", "n2")
    assert done.returncode == 0, done.stdout
    assert "node n2: " in done.stdout
    assert done.stdout.count("ranks use /private/venv/bin/python ($VIRTUAL_ENV)") == 2


def test_an_environment_that_another_user_can_change_is_refused_unless_it_is_named(box: Sandbox) -> None:
    """On n2 another user owns its packages; `cluster.python` is the user's own decision."""
    make(box, "venv", ("n1", "n2"))
    packages = "$(echo /private/venv/lib/python*/site-packages)"
    run(box.host("n2"), f"chown 4711 {packages}", root=True)
    done = aboard(box, "venv", "launch", "n1", "n2", "--", "show.py")
    assert done.returncode == 2
    said = " ".join((done.stdout + done.stderr).split())
    assert "software-interpreter-unsafe n2" in said
    assert "site-packages belongs to user 4711" in said
    done = aboard(
        box, "venv", "launch", "--set", "cluster.python=/private/venv/bin/python", "n1", "n2", "--", "show.py"
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_script_that_is_only_on_the_head_stops_the_launch_and_the_fix_copies_it(box: Sandbox) -> None:
    """Before any rank has started."""
    make(box, "plain", ("n1", "n2"))
    run(box.head, "mkdir -p /private/job && cp /shared/job/show.py /private/job")
    done = aboard(box, "plain", "launch", "n1", "n2", "--", "show.py", folder="/private/job")
    assert done.returncode == 2
    assert "phase" not in done.stdout
    assert "/private/job/show.py is missing on n[1-2]" in " ".join(done.stdout.split())
    fix = re.search(r"fix +(aboard sync --on 'n\[1-2\]' /private/job)    # or add --sync to the command", done.stdout)
    assert fix is not None, done.stdout
    done = aboard(box, "plain", *shlex.split(fix[1])[1:])
    assert done.returncode == 0, done.stdout + done.stderr
    done = aboard(box, "plain", "launch", "n1", "n2", "--", "show.py", folder="/private/job")
    assert done.returncode == 0, done.stdout + done.stderr
    # Another one on n2: a script that differs stops it, a stray file beside it does not.
    run(box.host("n2"), "echo 'print(1)' >> /private/job/show.py")
    done = aboard(box, "plain", "launch", "n1", "n2", "--", "show.py", folder="/private/job")
    assert (done.returncode, "software-program-differs" in done.stdout) == (2, True)
    run(box.host("n2"), "head -c -9 /private/job/show.py > /tmp/s && cp /tmp/s /private/job/show.py")
    run(box.host("n2"), "echo 'print(2)' > /private/job/stray.py")
    run(box.head, "echo 'print(3)' > /private/job/stray.py && scp -q /private/job/stray.py n1:/private/job/")
    done = aboard(box, "plain", "launch", "n1", "n2", "--", "show.py", folder="/private/job")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "software-code" in done.stdout


@pytest.mark.parametrize("how", ["plain", pytest.param("compile", marks=pytest.mark.nightly)])
def test_the_deepspeed_command_of_a_guide_runs_from_a_virtual_environment(box: Sandbox, how: str) -> None:
    """As the guide has it, pasted. DeepSpeed finds ninja, which is in the environment only, and compiles with it."""
    make(box, "venv", ("n1", "n2"))
    for host in (box.head, *box.nodes):
        run(host, f"ln -s {NINJA} /private/venv/bin/ninja")
    box.head.run(["tee", f"{JOB}/train.py"], input=DEEPSPEED).check_returncode()
    run(box.head, f"printf 'n1 slots=1\\nn2 slots=1\\n' > {JOB}/hostfile")
    command = f"deepspeed --hostfile hostfile --num_gpus 1 --num_nodes 2 --master_port 29501 train.py --how {how}"
    done = aboard(box, "venv", "launch", "--env", "DS_ACCELERATOR=cpu", "--", *command.split(), timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sum 2, ninja /private/venv/bin/ninja" in done.stdout


def test_the_hosts_of_a_sandbox_see_the_environment_that_is_active_where_it_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that belongs to the user who typed `sudo aboard sandbox up`: a launch works in it as typed."""
    venv = tmp_path / "venv"
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", "--system-site-packages", venv], check=True)
    subprocess.run(["chown", "-R", "4242:0", venv], check=True)
    subprocess.run(["chmod", "-R", "go+rX", tmp_path], check=True)
    monkeypatch.setenv("VIRTUAL_ENV", str(venv))
    with build_sandbox("active", nodes=1, slots=1) as made:
        run(made.head, f"mkdir -p {JOB}")
        made.head.run(["tee", f"{JOB}/show.py"], input=SHOW).check_returncode()
        launch = ["aboard", "launch", "n1", "--", "show.py"]
        done = made.head.run(launch, env={"VIRTUAL_ENV": str(venv)}, cwd=JOB)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"ran {venv}/bin/python {venv} {venv}/bin" in done.stdout


def make(box: Sandbox, kind: str, nodes: tuple[str, ...]) -> None:
    """The environment on the head and on these nodes, and on no others."""
    for host in (box.head, *box.nodes):
        run(host, f"rm -rf {PYTHONS[kind].rpartition('/bin/')[0]}", root=True)
        if host is box.head or host.name in nodes:
            run(host, MAKE[kind])


def aboard(
    box: Sandbox, kind: str, *words: str, folder: str = JOB, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """As it is typed with the environment active, or by its own interpreter where nothing is activated."""
    active = {"venv": {"VIRTUAL_ENV": "/private/venv"}, "conda": {"CONDA_PREFIX": "/private/conda"}}.get(kind)
    if active is not None:
        return box.head.run(["aboard", *words], env=active, cwd=folder, timeout=timeout * slowness())
    return box.head.run([PYTHONS[kind], "-m", "aboard", *words], cwd=folder, timeout=timeout * slowness())


def run(host: Host, script: str, *, root: bool = False) -> None:
    done = host.run(["sh", "-c", script], root=root)
    assert done.returncode == 0, (script, done.stdout, done.stderr)
