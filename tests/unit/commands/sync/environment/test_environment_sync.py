"""`sync --env` against agents on this machine: what each node gets, and what is refused by name."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from venv import EnvBuilder

import pytest
from small_wheels import SITE, install, make_venv, run_python

from aboard.agent.inspect.launch_environment import describe_environment as describe_launch, inspect_interpreter
from aboard.agent.packages.virtual_environment import INCOMPLETE, WHEELS, create_environment
from aboard.commands.sync.environment.node_environment import HeadContents
from aboard.commands.sync.environment.sync_environment import (
    describe_environment,
    pack_environment,
    require_virtual_environment,
    sync_described_environment,
    sync_environment,
)
from aboard.config.this_machine import find_environment, record_environment_place
from aboard.core.cluster.interpreter import HeadEnvironment, InterpreterSource
from aboard.core.cluster.node import Node
from aboard.core.environment.node_parity import (
    InterpreterDescription,
    choose_base_interpreter,
    find_base_differences,
    find_needed_glibc,
    parse_glibc,
)
from aboard.core.environment.sync_report import EnvironmentProgress, EnvironmentSyncResult
from aboard.core.probes.rank_environment import RankSpec, build_environment_query, parse_environment
from aboard.diagnoses import AboardError, Severity, Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import Untrusted
from aboard.transport.local import LocalTransport
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.transport import ByteStream, OnPhase


class LocalOrLost(LocalTransport):
    """An agent on this machine, except for the node called `lost`."""

    async def open(self, node: Node, on_phase: OnPhase) -> ByteStream:
        if node.name == "lost":
            raise Unreachable(UnreachableReason.TIMED_OUT, "lost: no connection within 1 s")
        return await super().open(node, on_phase)


def pack(venv: Path) -> HeadContents:
    async def run() -> HeadContents:
        head, distributions = await describe_environment(venv, venv.parent / "cache", str(venv))
        return await pack_environment(head, distributions, lambda _progress: None)

    return asyncio.run(run())


def pack_and_move(venv: Path) -> HeadContents:
    """Nodes on this machine see the head's disk, so its environment makes way for theirs."""
    head = pack(venv)
    return replace(head, folder=venv.rename(venv.parent / "away"))


def sync(
    head: HeadContents,
    nodes: Sequence[str] = ("n1",),
    told: list[EnvironmentProgress] | None = None,
    *,
    dry: bool = False,
) -> EnvironmentSyncResult:
    heard: list[EnvironmentProgress] = [] if told is None else told

    async def run() -> EnvironmentSyncResult:
        dialer = NodeDialer(lambda _node: LocalOrLost())
        try:
            return await sync_described_environment(
                [Node(name=name) for name in nodes], dialer, head, (), heard.append, dry=dry
            )
        finally:
            await dialer.close()

    return asyncio.run(run())


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    made = tmp_path / "venv"
    EnvBuilder(symlinks=True).create(made)  # as `python -m venv` does, without another interpreter
    install(made, "tiny", "1.0", {"tiny/__init__.py": "value = 1\n"})
    install(made, "other", "0.5", {"other.py": "", "other-0.5.data/scripts/say": "#!python\nprint('said')\n"})
    return made


@pytest.mark.ci
def test_nodes_get_the_environment_once(venv: Path, tmp_path: Path) -> None:
    """The first node creates it, one on the same disk waits for it, a node that can't be reached stops nobody."""
    head = pack_and_move(venv)
    planned = sync(head, dry=True)
    assert (planned.nodes["n1"].action, len(planned.nodes["n1"].installed)) == ("created", 2)
    assert not venv.exists()
    told: list[EnvironmentProgress] = []
    done = sync(head, ["n1", "lost", "n2"], told)
    assert {name: (each.action, each.same_disk_as) for name, each in done.nodes.items()} == {
        "n1": ("created", None),
        "n2": ("shared", "n1"),
    }
    assert sorted(done.nodes["n1"].installed) == ["other", "tiny"]
    assert [*done.failures] == ["lost"]
    assert run_python(venv, "import tiny; print(tiny.value)") == "1"
    assert run_python(venv, "import subprocess, sys; subprocess.run([sys.prefix + '/bin/say'])") == "said"
    left = {path.name for path in (*venv.iterdir(), *(venv / SITE).iterdir()) if path.name.startswith((".", "~"))}
    assert left == {".aboard-environment"}
    phases = [progress.phase for progress in told if progress.node == "n1"]
    assert [phase for phase in dict.fromkeys(phases) if phase != "sending"] == ["checking", "installing", "done"]
    again = sync(head, ["n1", "n2"])
    assert {each.action for each in again.nodes.values()} == {"unchanged"}


def sync_to(venv: Path, target: str, *, dry: bool = False) -> EnvironmentSyncResult:
    """The whole command, to a path of the node's own."""
    environment = HeadEnvironment(python=str(venv / "bin/python"), origin=InterpreterSource.VIRTUAL_ENV)

    async def run() -> EnvironmentSyncResult:
        dialer = NodeDialer(lambda _node: LocalOrLost())
        try:
            return await sync_environment(
                [Node(name="n1")], dialer, environment, cache=venv.parent / "cache", target=target, dry=dry
            )
        finally:
            await dialer.close()

    return asyncio.run(run())


@pytest.mark.ci
def test_nothing_is_packed_for_a_dry_run_or_for_nodes_that_cannot_have_it(venv: Path, tmp_path: Path) -> None:
    """Packing takes minutes: the target is checked first, and a dry run says what would be done without it."""
    other = tmp_path / "other"
    planned = sync_to(venv, str(other), dry=True).nodes["n1"]
    assert (planned.action, sorted(planned.installed)) == ("created", ["other", "tiny"])
    other.mkdir()
    (other / "thesis.tex").write_text("mine")
    assert sync_to(venv, str(other)).failures["n1"].code == "env-path"
    assert not (tmp_path / "cache").exists()


@pytest.mark.ci
def test_nodes_may_have_it_below_their_home_or_at_a_path_of_their_own(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts there name that path, a second sync finds nothing to do, and a dry run neither."""
    monkeypatch.setenv("HOME", str(tmp_path / "alice"))
    (tmp_path / "alice").mkdir()
    assert sync_to(venv, "~/venvs/train").nodes["n1"].action == "created"
    made = tmp_path / "alice/venvs/train"
    assert run_python(made, "import subprocess, sys, tiny; subprocess.run([sys.prefix + '/bin/say'])") == "said"
    assert (made / "bin/say").read_text().startswith(f"#!{made}/bin/python")
    assert sync_to(venv, "~/venvs/train").nodes["n1"].action == "unchanged"
    assert sync_to(venv, "~/venvs/train", dry=True).nodes["n1"].action == "unchanged"
    install(venv, "tiny", "2.0", {"tiny/__init__.py": "value = 2\n"})
    assert sync_to(venv, "~/venvs/train", dry=True).nodes["n1"].installed == ("tiny",)


def test_ranks_use_the_environment_where_it_was_put(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--env-path` is remembered here; without it, a path below the home is below the home there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    environ = {"HOME": str(tmp_path), "VIRTUAL_ENV": str(venv)}
    node = Node(name="n1")

    def choose(home: Path) -> str:
        spec = RankSpec(environment=find_environment(environ))
        monkeypatch.setenv("HOME", str(home))
        reply = describe_launch(build_environment_query(node, spec))
        monkeypatch.setenv("HOME", str(tmp_path))
        return parse_environment(node, spec, reply).interpreter.path

    alices = make_venv(tmp_path / "alice/venv")
    (tmp_path / "bob").mkdir()
    assert choose(tmp_path / "alice") == f"{alices}/bin/python"
    assert choose(tmp_path / "bob") == f"{venv}/bin/python"
    elsewhere = make_venv(tmp_path / "elsewhere")
    record_environment_place(venv, str(elsewhere), environ)
    assert choose(tmp_path / "alice") == f"{elsewhere}/bin/python"
    record_environment_place(venv, str(venv), environ)
    assert choose(tmp_path / "alice") == f"{alices}/bin/python"
    spec = RankSpec(environment=find_environment(environ))
    for path in ("/tmp/evil/bin/python", "/x/../venv/bin/python", "\x1b/venv/bin/python"):
        with pytest.raises(ValueError, match="invalid reply"):
            parse_environment(node, spec, {"python": {"exists": True, "path": path}, "search_path": ""})


@pytest.mark.ci
def test_only_what_differs_is_changed(venv: Path, tmp_path: Path) -> None:
    """Another version and a damaged package are installed, a package that the head lacks is removed."""
    head = pack_and_move(venv)
    assert sync(head).nodes["n1"].action == "created"
    install(venv, "tiny", "0.9", {"tiny/__init__.py": "value = 0\n", "tiny/gone.py": ""})
    install(venv, "extra", "3.0", {"extra.py": ""})
    done = sync(head).nodes["n1"]
    assert (done.action, sorted(done.installed), done.removed) == ("updated", ["tiny"], ("extra",))
    assert run_python(venv, "import tiny; print(tiny.value)") == "1"
    assert not (venv / SITE / "extra.py").exists()
    (venv / SITE / "other.py").unlink()
    assert sync(head).nodes["n1"].installed == ("other",)


@pytest.mark.ci
def test_the_heads_own_environment_is_not_touched(venv: Path) -> None:
    """A node that sees the head's files keeps them as they are, although they differ from a node's."""
    editable = venv / SITE / "mine.py"
    editable.write_text("")
    head = pack(venv)
    install(venv, "extra", "3.0", {"extra.py": ""})
    elsewhere = venv.parent / "elsewhere"
    elsewhere.mkdir()
    # Either sign is enough: the mark, or the same file.
    for seen in (replace(head, stamp=""), replace(head, folder=elsewhere)):
        done = sync(seen).nodes["n1"]
        assert (done.action, done.same_disk_as) == ("shared", "")
    assert (venv / SITE / "extra.py").exists()


@pytest.mark.ci
def test_an_incomplete_environment_has_no_interpreter(venv: Path, tmp_path: Path) -> None:
    """Until it is complete, a launch takes it for missing; the next sync continues it."""
    head = pack_and_move(venv)
    assert create_environment(str(venv), {"executable": sys.executable}) == {}
    (venv / WHEELS).mkdir()
    assert inspect_interpreter(str(venv / "bin/python")) == {"exists": False}
    done = sync(head).nodes["n1"]
    assert (done.action, len(done.installed)) == ("created", 2)
    assert inspect_interpreter(str(venv / "bin/python"))["exists"]
    assert not (venv / INCOMPLETE).exists()
    assert not (venv / WHEELS).exists()


@pytest.mark.ci
def test_what_is_in_the_way_is_named(venv: Path, tmp_path: Path) -> None:
    """Another directory and somebody's environment of another Python stay; one that we created is replaced."""
    head = pack_and_move(venv)
    venv.mkdir()
    (venv / "thesis.tex").write_text("mine")
    failure = sync(head).failures["n1"]
    assert (failure.code, "exists, but is not a virtual environment" in failure.seen) == ("env-path", True)
    assert failure.fix == f"mv {venv} {venv}.old    # on n1; then run the command again"
    assert (venv / "thesis.tex").read_text() == "mine"
    (venv / "pyvenv.cfg").write_text("home = /nowhere\nversion = 3.2.1\n")
    assert "whose base interpreter is missing" in sync(head).failures["n1"].seen
    (venv / ".aboard-environment").write_text("")
    assert sync(head).nodes["n1"].action == "created"
    assert not (venv / "thesis.tex").exists()


@pytest.mark.ci
def test_a_node_without_the_version_says_which_it_has(venv: Path, tmp_path: Path) -> None:
    """The error names the wanted and the found versions, and copies an interpreter that no package manager has."""
    head = pack_and_move(venv)
    interpreter = replace(head.interpreter, minor="3.99", base=Untrusted("/home/me/.pyenv/versions/3.99"))
    failure = sync(replace(head, interpreter=interpreter)).failures["n1"]
    assert failure.code == "env-no-python"
    assert failure.seen.startswith("n1 has no Python 3.99; it has 3.")
    assert failure.fix.startswith("aboard sync /home/me/.pyenv/versions/3.99    # ")
    assert not venv.exists()


def test_packages_of_the_base_are_compared(venv: Path) -> None:
    """With access to the system's packages, those that a node lacks are named with both versions; torch blocks."""
    head = pack(venv)
    packages = {**head.interpreter.packages, "torch": "99.0", "no-such": "1.0", "tiny": "0.1"}
    wanted = replace(head, system_packages=True, interpreter=replace(head.interpreter, packages=packages))
    findings = sync(wanted).nodes["n1"].findings
    assert [(each.code, each.severity) for each in findings if "torch" in each.seen] == [("env-base", Severity.BLOCK)]
    assert [each.severity for each in findings if "no-such 1.0 (n1: none)" in each.seen] == [Severity.WARN]
    assert not [each for each in findings if "tiny" in each.seen]


def test_only_a_virtual_environment_can_be_recreated(tmp_path: Path) -> None:
    """Without one, and for conda, the error says what to do."""
    (tmp_path / "conda/conda-meta").mkdir(parents=True)
    conda = HeadEnvironment(python=str(tmp_path / "conda/bin/python"), origin=InterpreterSource.CONDA_PREFIX)
    system = HeadEnvironment(python="/usr/bin/python3", origin=InterpreterSource.ABOARD)
    for environment, code in ((conda, "env-conda"), (system, "env-none"), (None, "env-none")):
        with pytest.raises(AboardError) as raised:
            require_virtual_environment(environment)
        assert raised.value.code == code
        assert "python3 -m venv" in raised.value.fix


def test_a_problem_of_the_head_raises_before_a_node_is_dialled(venv: Path, tmp_path: Path) -> None:
    """Nothing is half done when a package can't be packed."""
    (venv / SITE / "old-1.0.egg-info").mkdir()
    environment = HeadEnvironment(python=str(venv / "bin/python"), origin=InterpreterSource.VIRTUAL_ENV)
    with pytest.raises(AboardError, match="the files of old"):
        asyncio.run(sync_environment([], NodeDialer(), environment, cache=tmp_path / "cache"))


def describe(**changes: str) -> InterpreterDescription:
    values = {"version": "3.11.7", "minor": "3.11", "abi": "cpython-311", "machine": "x86_64", "glibc": "2.36"}
    paths = {name: Untrusted("/x") for name in ("executable", "base", "site")}
    return InterpreterDescription(**{**values, **changes}, **paths, packages={})  # type: ignore[arg-type]


def test_the_base_interpreter_fits_the_head() -> None:
    """The same version is preferred; another minor version, architecture or build never fits."""
    head, patch = describe(), describe(version="3.11.2")
    assert choose_base_interpreter(head, [patch, head]) is head
    assert choose_base_interpreter(head, [patch]) is patch
    others = [
        describe(minor="3.9", version="3.9.1"),
        describe(machine="aarch64"),
        describe(abi="cpython-311d"),
    ]
    assert choose_base_interpreter(head, others) is None


def test_glibc_and_base_packages_are_compared() -> None:
    """A wheel with two tags needs the older glibc; a package in another version counts as much as a missing one."""
    both = ["manylinux_2_27_x86_64", "manylinux_2_28_x86_64"]
    assert find_needed_glibc([["any"], both, ["manylinux2014_x86_64"]]) == (2, 27)
    assert find_needed_glibc([["manylinux_2_34_x86_64"], both]) == (2, 34)
    assert find_needed_glibc([["linux_x86_64"]]) == (0, 0)
    assert (parse_glibc("2.36"), parse_glibc("")) == ((2, 36), None)
    assert find_base_differences({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "1"}) == {
        "b": ("2", "1"),
        "c": ("3", None),
    }


def test_environment_variables_of_python_do_not_matter(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PYTHONPATH or PYTHONHOME on the head or a node has no influence on what is found or created."""
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))
    head = pack(venv)
    assert Path(head.interpreter.executable.raw()).is_absolute()
    assert sorted(head.wheels) == ["other", "tiny"]
