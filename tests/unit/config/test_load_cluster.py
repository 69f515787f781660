"""From what a user wrote to a Cluster, over every way in."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings, strategies as st
from typed_commands import Ran, aboard

from aboard.config import cluster_loader
from aboard.config.cluster_loader import guess_nodes, load_cluster
from aboard.core.cluster.cluster import Cluster, PlannedWrites
from aboard.core.cluster.container import Container
from aboard.core.cluster.head_machine import HeadMachine
from aboard.core.cluster.interpreter import Interpreter, InterpreterSource
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.text.input_text import find_host_error, find_user_error
from aboard.diagnoses import InputError

HERE = HeadMachine(names=frozenset({"head"}), addresses=("10.0.0.1", "127.0.1.1"), user="alice")


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(
    *sources: str,
    hostfile: str | None = None,
    sets: tuple[str, ...] = (),
    allow_file: bool = False,
    **filters: str,
) -> Cluster:
    include, exclude = filters.get("include", ""), filters.get("exclude", "")
    return load_cluster(
        sources,
        hostfile=hostfile,
        include=include,
        exclude=exclude,
        sets=sets,
        allow_file=allow_file,
        here=HERE,
        toward=lambda peers: ["10.0.0.1" for _ in peers],
    )


def problem(*sources: str, hostfile: str | None = None, sets: tuple[str, ...] = ()) -> tuple[str, str]:
    with pytest.raises(InputError) as caught:
        load(*sources, hostfile=hostfile, sets=sets)
    (only,) = caught.value.problems
    return str(only), only.fix


def test_nothing_given() -> None:
    """Without any input, the cluster is this machine."""
    assert load() == Cluster(
        nodes=(Node(name="localhost", transport=TransportKind.LOCAL, env={}),), source="this machine"
    )


def test_a_file_name_with_a_typing_mistake(files: Path) -> None:
    """The file that is there under nearly that name is named, for a hostfile and a .yaml file alike."""
    (files / "conf").mkdir()
    (files / "conf" / "hostfile").write_text("n1 slots=8\n")
    (files / "cluster.yaml").write_text("cluster: {nodes: n1}")
    assert problem(hostfile="conf/hostfiel") == (
        "conf/hostfiel: the file does not exist",
        "did you mean 'conf/hostfile'?",
    )
    assert problem("clutser.yaml")[1] == "did you mean 'cluster.yaml'?"
    assert problem(hostfile="elsewhere/hostfile")[1].startswith("write one")


ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "gpu[07-08]"}
STEP = {**ALLOCATION, "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}


def typed_in(env: dict[str, str], monkeypatch: pytest.MonkeyPatch, *argv: str) -> Ran:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    # The real one would look for slurmctld on the network.
    scontrol = Path("bin", "scontrol").absolute()
    scontrol.parent.mkdir()
    scontrol.write_text("#!/bin/sh\nexit 1\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scontrol.parent}:{os.environ['PATH']}")
    return aboard(*argv)


@pytest.mark.parametrize(
    "env",
    [
        ALLOCATION,
        {**ALLOCATION, "SLURM_STEP_ID": "4294967290", "SLURM_NTASKS": "2"},
        {**STEP, "SLURM_PTY_PORT": "4000"},
        {**STEP, "SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_one_copy_in_a_slurm_job(monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> None:
    """A batch script, an interactive shell and a step of one task are one copy, which may use this machine alone."""
    assert typed_in(env, monkeypatch, "check", "--only", "reach", "localhost").code == 0


def test_trust_in_a_slurm_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nodes need no ssh; the fix sets it up all the same."""
    ran = typed_in(ALLOCATION, monkeypatch, "trust")
    assert (ran.code, "[trust-slurm]" in ran.stderr) == (3, True)
    assert "fix  env -u SLURM_JOB_ID aboard trust 'gpu[07-08]'    # to set up ssh" in ran.stderr


def test_copies_that_srun_started_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would start the whole run, also when nodes are named."""
    ran = typed_in(STEP, monkeypatch, "launch", "localhost", "--", "train.py")
    assert (ran.code, "[slurm-copies]" in ran.stderr) == (3, True)
    assert "srun started 2 copies of aboard; start only one" in ran.stderr
    assert "fix  aboard launch localhost -- train.py    # in the batch script" in ran.stderr


def test_default_file(files: Path) -> None:
    """Without any source, ./aboard.yaml is read if it is there; a named source goes without it."""
    (files / "aboard.yaml").write_text("cluster: {nodes: n1}")
    assert [node.name for node in load()] == ["n1"]
    assert load().source == "aboard.yaml"
    assert [node.name for node in load("m1")] == ["m1"]


def test_what_the_run_writes(files: Path) -> None:
    """It comes with the nodes, also where those come from elsewhere; nobody is asked to say it."""
    (files / "run.yaml").write_text("run: {output: /data/out, writes: 1.5TB}")
    wanted = PlannedWrites(path="/data/out", size=1_500_000_000_000)
    assert load("n1", "run.yaml").writes == wanted
    assert load("n1", sets=("run.output=/data/out", "run.writes=1.5TB")).writes == wanted
    assert load("n1").writes is None


def test_names() -> None:
    """Node sets on the command line are nodes; the head among them uses the local transport."""
    nodes = load("bob@n[1-2]", "head").nodes
    assert [(node.name, node.user, node.transport) for node in nodes] == [
        ("n1", "bob", TransportKind.SSH),
        ("n2", "bob", TransportKind.SSH),
        ("head", None, TransportKind.LOCAL),
    ]


def test_localhost_beside_others() -> None:
    """`localhost` in a list keeps its name, and gets the address that its peers see."""
    head = load("localhost", "n1").nodes[0]
    assert (head.name, head.address, head.transport) == ("localhost", "10.0.0.1", TransportKind.LOCAL)


def test_filters_come_before_the_head() -> None:
    """When a filter leaves localhost alone, it needs no address."""
    (head,) = load("localhost", "n1", include="localhost:0,1").nodes
    assert (head.address, head.picked) == (None, (0, 1))


def test_hostfile_with_defaults(files: Path) -> None:
    """A hostfile names the nodes, and the section says what they have in common."""
    (files / "hosts").write_text("n1 slots=4\nbob@n2 slots=8\n")
    nodes = load(hostfile="hosts", sets=("cluster.user=carol", "cluster.slots=1")).nodes
    assert [(node.name, node.user, node.slots) for node in nodes] == [("n1", "carol", 4), ("n2", "bob", 8)]


def test_hostfile_beside_its_yaml(files: Path) -> None:
    """A relative hostfile is looked for beside the file that names it."""
    (files / "sub").mkdir()
    (files / "sub" / "hosts").write_text("n1 slots=4\nn2\n")
    (files / "sub" / "a.yaml").write_text("cluster: {hostfile: hosts}")
    seen, fix = problem("sub/a.yaml")
    assert seen == "sub/hosts:2: 'n2' has no slots=N"
    assert fix == "write: n2 slots=8"


def test_section(files: Path) -> None:
    """A node has its own values, else the cluster's; env is joined, and patterns are filled in."""
    (files / "a.yaml").write_text("""\
cluster:
  nodes:
    - n1 slots=4
    - {name: n2, python: python3, env: {A: own}, fabric_address: 10.1.0.2, setup: [], port: 2222}
  slots: 8
  user: bob
  python: /opt/python
  workdir: /data
  env: {A: all, B: all}
  fabric_address: "ib-{name}"
  setup: module load cuda
  container: {runtime: docker, image: a:1, python: /opt/py, binds: [/a, /b:/c:ro], env: {X: y}, options: [--rm],
              writable_tmpfs: true, gpus: nvidia}
""")
    box = Container(
        runtime="docker",
        image="a:1",
        python="/opt/py",
        binds=("/a", "/b:/c:ro"),
        env={"X": "y"},
        options=("--rm",),
        writable_tmpfs=True,
        gpus="nvidia",
    )
    assert load("a.yaml").nodes == (
        Node(
            name="n1",
            slots=4,
            user="bob",
            python="/opt/python",
            interpreter=Interpreter(path="/opt/python", origin=InterpreterSource.CONFIGURED),
            workdir="/data",
            fabric_address="ib-n1",
            env={"A": "all", "B": "all"},
            setup=("module load cuda",),
            container=box,
        ),
        Node(
            name="n2",
            slots=8,
            user="bob",
            port=2222,
            python="python3",
            interpreter=Interpreter(path="python3", origin=InterpreterSource.CONFIGURED),
            workdir="/data",
            fabric_address="10.1.0.2",
            env={"A": "own", "B": "all"},
            container=box,
        ),
    )


def test_a_user_for_all_is_no_call_for_ssh(files: Path) -> None:
    """The head stays on the local wire when user and port are the cluster's; its own port means ssh."""
    (files / "a.yaml").write_text("cluster: {nodes: [head], user: bob, port: 2222}")
    (files / "b.yaml").write_text("cluster: {nodes: [{name: head, port: 2222}]}")
    assert load("a.yaml").nodes[0].transport is TransportKind.LOCAL
    assert load("b.yaml").nodes[0].transport is TransportKind.SSH


@pytest.mark.parametrize(
    ("text", "seen", "fix"),
    [
        ("nodes: [n1, n1]", "a.yaml:1:23: n1 is listed twice, also at a.yaml:1:19", "list n1 only once"),
        ("nodes: 'n[1-'", "a.yaml:1:18: this range has no end, and no ']'", "for example n[1-4]"),
        ("nodes: n1 slot=8", "'n1 slot=8' is neither a node set nor 'NODES slots=N'", 'write "n1 slots=8"'),
        ("nodes: n1 slots=99999", "at most 65,536 slots", 'write "n1 slots=8"'),
        ("nodes: 'n[1-2]', fabric_address: x", "n1 and n2 would both have the fabric_address x", '"{name}i"'),
        ("nodes: ['::1', b], fabric_address: '{name}i'", "fabric_address of ::1", "a separate fabric_address"),
        ("nodes: [{name: 'n[1-2]', address: x}]", "can't share the address x", "one entry per node"),
        ("nodes: [{name: a@n, user: b}]", "the user is set twice: a in the name, and b", "write name: n"),
        ("nodes: n1, hostfile: h", "the nodes were specified twice, by cluster.nodes (a.yaml:1:18)", "--include NODES"),
        ("nodes: []", "cluster.nodes is empty", "write nodes: gpu[01-16]"),
        ("hostfile: none", "none: the file does not exist", "worker-0 slots=8"),
        ("nodes: [localhost, head]", "localhost and head are both this machine", "remove head"),
    ],
)
def test_wrong_sections(files: Path, text: str, seen: str, fix: str) -> None:
    """What can't be a cluster is refused at its place."""
    (files / "a.yaml").write_text(f"cluster: {{{text}}}\n")
    found, way = problem("a.yaml")
    assert seen in found
    assert fix in way


def test_nodes_given_twice(files: Path) -> None:
    """Names beside a file with nodes are an error that shows how to use a part of them."""
    (files / "a.yaml").write_text("cluster: {nodes: n1}\n")
    assert problem("n1", "a.yaml") == (
        "cluster: the nodes were specified twice, by the command line and by cluster.nodes (a.yaml:1:18)",
        "keep one of them; to use some of the nodes, add --include NODES",
    )
    assert "by --hostfile h and by" in problem("a.yaml", hostfile="h")[0]


def test_a_path_is_no_name() -> None:
    """A hostfile given as a name is pointed to its option."""
    assert problem("etc/hosts")[1] == "for a hostfile, use: --hostfile etc/hosts"


def test_a_file_that_is_none(files: Path) -> None:
    """A directory is no file, and the message says so."""
    (files / "d.yaml").mkdir()
    assert problem("d.yaml")[0] == "d.yaml: this is a directory"


def test_no_secret_in_a_repr() -> None:
    """A node in a traceback or a log line doesn't show its environment."""
    assert "hunter2" not in repr(load("n1", sets=("cluster.env.TOKEN=hunter2",)))


def test_names_need_no_pydantic() -> None:
    """A cluster of names or from a hostfile is there before pydantic or PyYAML could have been imported."""
    code = (
        "import sys; from aboard.config.cluster_loader import load_cluster; from aboard.config.this_machine import"
        " inspect_this_machine;"
        "load_cluster(['n[1-4]'], here=inspect_this_machine());"
        "assert not {'pydantic', 'yaml'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    sources=st.lists(st.text(max_size=12), max_size=2),
    hostfile=st.none() | st.text(max_size=40),
    include=st.just("") | st.text(max_size=8),
)
def test_nothing_odd_reaches_ssh(files: Path, sources: list[str], hostfile: str | None, include: str) -> None:
    """Whatever is written, every host and user that comes out is one that ssh and a shell take as a plain word."""
    if hostfile is not None:
        (files / "hosts").write_text(hostfile, encoding="utf-8", errors="replace")
    with suppress(InputError):
        for node in load(*sources, hostfile=None if hostfile is None else "hosts", include=include):
            assert find_host_error(node.target) is None
            assert node.user is None or find_user_error(node.user) is None


@pytest.mark.parametrize(
    "text",
    [
        "cluster: {nodes: 'n[1-2] slots=4', python: /opt/python, user: bob, port: 2222}",
        "cluster: {nodes: [n1, 'alice@n2 slots=2'], env: {A: 1}, setup: x}\ntrain: {unknown: 1}",
    ],
)
def test_nodes_are_guessed_as_they_will_be_read(files: Path, text: str) -> None:
    """All that it takes to dial them is the same; other sections are not looked at."""
    (files / "aboard.yaml").write_text(text)
    guessed = guess_nodes(here=HERE, allow_file=True)
    (files / "aboard.yaml").write_text(text.partition("\n")[0])
    read = load(allow_file=True).nodes
    assert [(node.name, node.target, node.user, node.port, node.python, node.transport) for node in guessed] == [
        (node.name, node.target, node.user, node.port, node.python, node.transport) for node in read
    ]
    assert len(guessed) == 2


@pytest.mark.parametrize(
    "text",
    [
        "cluster: {nodes: [{name: n1, address: 10.0.0.1}]}",
        "cluster: {nodes: [n1], python: '-c x'}",
        "cluster: {nodes: [n1], user: '-oProxyCommand=x'}",
        "cluster: {nodes: ['-oProxyCommand=x']}",
        "cluster: {nodes: [n1], port: '22'}",
        "cluster: {hostfile: hosts}",
        "cluster: 3",
        "cluster: [",
        "",
    ],
)
def test_what_is_not_plain_is_not_guessed(files: Path, text: str) -> None:
    """Nobody is dialled by words that were not checked."""
    (files / "aboard.yaml").write_text(text)
    assert guess_nodes(here=HERE, allow_file=True) == ()


def test_nodes_of_the_command_line_are_guessed_with_their_filters(files: Path) -> None:
    """A file of its own, or a mistake, leaves it to the real reading."""
    assert [node.name for node in guess_nodes(["n[1-3]"], exclude="n2", here=HERE)] == ["n1", "n3"]
    assert guess_nodes(["other.yaml"], here=HERE) == ()
    assert guess_nodes(["n[1-"], here=HERE) == ()


VALUES = {
    "nodes": st.sampled_from(
        ["n[1-2]", ["n1", "bob@n2 slots=3"], "n1 slots=0", ["n1", 3], [], "-x", ["n1\tslots=2"], [[]]]
    ),
    "slots": st.sampled_from([0, 8, -1, True, "8", 2**40]),
    "user": st.sampled_from(["bob", "-l", "", 3]),
    "port": st.sampled_from([22, 0, 65536, True, "22"]),
    "python": st.sampled_from(["python3", "/opt/a/python", "-c", "a b", "x/python", "", "/opt/a b/python"]),
    "workdir": st.sampled_from(["/data", "data", "/a b", "/a\nb", ""]),
    "env": st.sampled_from(
        [{"A": "x"}, {"A": 1, "B": True, "C": 1.5}, {"A-B": "x"}, {"A": ""}, {"A": None}, [], {"A": "\x7f"}]
    ),
    "setup": st.sampled_from(["module load cuda", ["a", "b"], "", [""], ["a\nb"], [3]]),
    "fabric_address": st.just("{name}i"),
    "nonsense": st.just(1),
}


@given(st.fixed_dictionaries({"nodes": VALUES["nodes"]}, optional={k: v for k, v in VALUES.items() if k != "nodes"}))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.ci
def test_a_plain_file_is_read_as_pydantic_reads_it(files: Path, section: dict[str, Any]) -> None:
    """What is not taken as it is, or is wrong, is pydantic's; the result is the same either way."""
    (files / "aboard.yaml").write_text(yaml.safe_dump({"cluster": section}))
    results: list[Any] = []
    for plain in (cluster_loader._read_plain, lambda _file, _here: (None, False)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cluster_loader, "_read_plain", plain)
            try:
                results.append(load(allow_file=True))
            except InputError as error:
                results.append(str(error))
    assert results[0] == results[1]


def test_a_plain_file_needs_no_pydantic(files: Path) -> None:
    """Which takes longer to import than all else that a launch does before it dials."""
    (files / "aboard.yaml").write_text("cluster: {nodes: ['n[1-4] slots=8'], python: /opt/python, env: {A: 1}}")
    script = (
        "import sys; from aboard.config.this_machine import inspect_this_machine; "
        "from aboard.config.cluster_loader import load_cluster; "
        "print(len(load_cluster(here=inspect_this_machine(), allow_file=True))); print('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=files)
    assert done.stdout.split() == ["4", "False"]
