"""Software: recorded answers to facts, facts to differences, and the script itself on real directories."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.interpreter import Interpreter, InterpreterSource
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.probe import CommandOutput, FileContents, ProbeCommand, ProbeFiles, ProbeParseError
from aboard.core.secrets.secret_names import SECRET_WORDS
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.shared.script_probes import parse_script_output
from aboard.doctor.software.code_differences import LISTINGS
from aboard.doctor.software.node_software import (
    SoftwareListing,
    build_inventory_command,
    parse_listing,
    parse_software,
)
from aboard.doctor.software.subject import SUBJECT, build_subject, list_differences
from aboard.node_scripts.script_source import read_script

SCRIPT = read_script("software_inventory")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
RECORDED: dict[str, Any] = {
    "python": "3.12.3",
    "executable": "/opt/venv/bin/python3",
    "packages": {"torch": "2.7.1+cu126", "cuda": "12.6", "nccl": "2.26.2", "transformers": "4.52.0"},
    "environment": "aa",
    "count": 120,
    "variables": {"NCCL_DEBUG": "WARN"},
    "code": "cc",
    "files": 12,
    "cut": False,
    "commit": "0123456789ab",
}


def _said(told: object) -> CommandOutput:
    return CommandOutput(code=0, stdout=json.dumps(told) + "\n")


def _facts(*changes: dict[str, Any], listings: dict[str, SoftwareListing] | None = None, **node: Any) -> Facts:
    """Nodes n1, n2, … that told what is recorded, but for these changes."""
    names = [f"n{number}" for number in range(1, len(changes) + 1)]
    answers = {name: parse_software(_said({**RECORDED, **change})) for name, change in zip(names, changes, strict=True)}
    return Facts(
        cluster=Cluster(nodes=tuple(Node(name=name, workdir="/job", **node) for name in names)),
        contacts={},
        answers={"software": answers},
        outcomes={} if listings is None else {LISTINGS.name: listings},
    )


def _packages(**changes: str | None) -> dict[str, Any]:
    """The recorded packages with changes; None takes one away."""
    merged = {**RECORDED["packages"], **changes}
    return {"packages": {name: version for name, version in merged.items() if version is not None}}


def _told(findings: list[Finding]) -> list[tuple[str, Severity, tuple[str, ...]]]:
    return [(each.code, each.severity, each.nodes) for each in findings]


def test_alike() -> None:
    """Nodes that told the same give no finding."""
    assert SUBJECT.judge(_facts({}, {}, {})) == []


def test_no_torch_anywhere() -> None:
    """It isn't for this subject to say that there must be one."""
    none: dict[str, Any] = {"packages": {}}
    assert SUBJECT.judge(_facts(none, none)) == []


@pytest.mark.parametrize(
    ("change", "code", "severity"),
    [
        (_packages(torch="2.6.0"), "software-torch", Severity.BLOCK),
        (_packages(torch=None, cuda=None, nccl=None), "software-torch", Severity.BLOCK),
        (_packages(nccl="2.21.5"), "software-nccl", Severity.BLOCK),
        (_packages(cuda="12.8"), "software-cuda", Severity.BLOCK),
        (_packages(cuda=None, nccl=None), "software-cuda", Severity.BLOCK),
        (_packages(cuda=None, rocm="6.3"), "software-cuda", Severity.BLOCK),
        (_packages(transformers="4.51.0"), "software-package", Severity.WARN),
        (_packages(**{"flash-attn": "2.7.4"}), "software-package", Severity.WARN),
        ({"python": "3.11.9"}, "software-python", Severity.BLOCK),
        ({"python": "3.12.4"}, "software-python", Severity.WARN),
        ({"executable": "/usr/bin/python3"}, "software-python-path", Severity.INFO),
        ({"variables": {"NCCL_DEBUG": "INFO"}}, "software-variable", Severity.WARN),
        ({"variables": {}}, "software-variable", Severity.WARN),
        ({"code": "dd"}, "software-config", Severity.WARN),
    ],
)
def test_one_that_differs(change: dict[str, Any], code: str, severity: Severity) -> None:
    """Each difference has its code and severity, on the node that differs from most or lacks what others have."""
    finding = SUBJECT.judge(_facts({}, {}, change, {}))[0]
    odd = ("n1", "n2", "n4") if "flash-attn" in change.get("packages", {}) else ("n3",)
    assert (finding.code, finding.severity, finding.nodes) == (code, severity, odd)
    assert finding.fix


@pytest.mark.parametrize(
    "change", [_packages(torch="2.7.1"), {"variables": {**RECORDED["variables"], "NCCL_IB_HCA": "m"}}]
)
def test_what_may_differ(change: dict[str, Any]) -> None:
    """The same torch from another index, and variables that are each node's own, are no difference."""
    assert SUBJECT.judge(_facts({}, change)) == []


def test_another_python_explains_the_rest() -> None:
    """Packages that differ where Python differs stand below it."""
    other = {"python": "3.10.12", **_packages(torch="2.6.0", transformers=None)}
    (finding,) = SUBJECT.judge(_facts({}, {}, other))
    assert finding.code == "software-python"
    assert [each.code for each in finding.consequences] == ["software-torch", "software-package"]


def test_a_warning_hides_no_block() -> None:
    """Another patch release of Python is a warning; another torch beside it still stops the run."""
    other = {"python": "3.12.4", **_packages(torch="2.6.0")}
    assert _told(SUBJECT.judge(_facts({}, {}, other))) == [
        ("software-python", Severity.WARN, ("n3",)),
        ("software-torch", Severity.BLOCK, ("n3",)),
    ]


def test_a_tie_goes_to_the_first_node() -> None:
    """Of two nodes, the first one is the measure, since rank 0 is there."""
    (difference,) = list_differences(_facts({}, _packages(nccl="2.21.5")))
    assert (difference.usual, difference.odd) == ("2.26.2", ("n2",))
    assert difference.sentence() == "nccl: n2 has 2.21.5, n1 has 2.26.2"


def test_many_versions_are_folded() -> None:
    """A sentence names a few versions and counts the others."""
    many = [_packages(nccl=f"2.{number}.0") for number in range(9)]
    difference = list_differences(_facts({}, {}, *many))[0]
    assert difference.sentence() == (
        "nccl: n3 has 2.0.0, n4 has 2.1.0, n5 has 2.2.0, 6 more versions elsewhere, n[1-2] have 2.26.2"
    )


def test_the_fix_installs_what_others_have() -> None:
    """With the node's own Python, after its setup, as its user."""
    facts = _facts({}, {}, _packages(torch="2.6.0"), user="ann", port=2222, setup=("module load cuda",))
    finding = SUBJECT.judge(facts)[0]
    assert finding.fix == ("ssh -p 2222 ann@n3 'module load cuda && python3 -m pip install torch==2.7.1+cu126'")


def test_the_fix_for_this_machine() -> None:
    """Nobody needs ssh to where they are."""
    finding = SUBJECT.judge(_facts({}, {}, _packages(nccl="2.1"), transport=TransportKind.LOCAL))[0]
    assert finding.fix == "python3 -m pip install nvidia-nccl-cu12==2.26.2"


def test_meant_by_the_user() -> None:
    """A variable that aboard.yaml sets is not compared."""
    assert SUBJECT.judge(_facts({}, {"variables": {}}, env={"NCCL_DEBUG": "INFO"})) == []


def test_secrets_are_not_shown() -> None:
    """Two tokens are told apart by a few letters of their digests."""
    hidden = {"variables": {**RECORDED["variables"], "HF_TOKEN": "hidden 0123456789abcdef"}}
    (finding,) = SUBJECT.judge(_facts({}, {}, hidden))
    assert finding.seen == "HF_TOKEN: n3 has a secret (0123…), n[1-2] have no value"


@pytest.mark.parametrize(
    ("files", "code", "severity", "words"),
    [
        ({"a.py": "2", "b.json": "1"}, "software-code", Severity.BLOCK, "different: a.py"),
        ({"b.json": "1"}, "software-code", Severity.BLOCK, "missing: a.py"),
        ({"a.py": "1", "b.json": "2"}, "software-config", Severity.WARN, "different: b.json"),
        ({"a.py": "1", "b.json": "1", "c.py": "1"}, "software-code", Severity.INFO, "extra: c.py"),
    ],
)
def test_files_that_differ(files: dict[str, str], code: str, severity: Severity, words: str) -> None:
    """Other code stops a run, other settings are a warning, more files worth a line."""
    listings = {
        "n1": SoftwareListing(packages={}, files={Untrusted("a.py"): "1", Untrusted("b.json"): "1"}),
        "n3": SoftwareListing(packages={}, files={Untrusted(path): digest for path, digest in files.items()}),
    }
    (finding,) = SUBJECT.judge(_facts({}, {}, {"code": "dd"}, listings=listings))
    assert (finding.code, finding.severity, finding.nodes) == (code, severity, ("n3",))
    assert finding.seen == f"in /job, compared with n1: {words}"


def test_many_files_are_copied_by_their_endings() -> None:
    """The fix stays short, however much differs."""
    usual = {Untrusted(f"{number}.py"): "1" for number in range(50)}
    listings = {"n1": SoftwareListing(packages={}, files=usual), "n3": SoftwareListing(packages={}, files={})}
    (finding,) = SUBJECT.judge(_facts({}, {}, {"code": "dd", "commit": "ff"}, listings=listings))
    assert "missing: 0.py, 1.py, 10.py, 11.py, 12.py and 45 more; git: ff, not 0123456789ab" in finding.seen
    assert len(finding.fix) < 300


def test_listings_are_asked_where_digests_differ() -> None:
    """One node of each kind is asked; nobody when all are alike."""
    with pytest.raises(StopIteration):
        next(LISTINGS.script(_facts({}, {}, {})))
    script = LISTINGS.script(_facts({"code": "odd"}, {}, {}, {"environment": "bb"}, {}))
    asked = next(script)
    assert sorted(asked) == ["n1", "n2", "n4"]
    assert asked["n1"].fields["argv"] == ["software", "list", "/job"]
    assert asked["n1"].fields["source"] == SCRIPT
    listing = {"code": 0, "stdout": json.dumps({"packages": {}, "files": {"a.py": "1"}}), "stderr": ""}
    with pytest.raises(StopIteration) as done:
        script.send({"n1": listing, "n2": Unknown(why="gone"), "n4": {"code": "?"}})
    assert done.value.value == {"n1": SoftwareListing(packages={}, files={Untrusted("a.py"): "1"})}


def test_unknown_is_said() -> None:
    """A node that can't be asked is a warning with the reason."""
    facts = _facts({}, {})
    lost = Facts(cluster=facts.cluster, contacts={}, answers={"software": {"n2": Unknown(why="no bash")}})
    (finding,) = SUBJECT.judge(lost)
    assert (finding.code, finding.severity, finding.nodes) == ("unknown-software", Severity.WARN, ("n2",))


@pytest.mark.parametrize(
    "answer",
    [
        FileContents(files={}),
        CommandOutput(code=1, stdout="", stderr="Traceback\nSyntaxError: \x1b[31minvalid"),
        CommandOutput(code=0, stdout="{}", timed_out=True),
        CommandOutput(code=0, stdout=""),
        CommandOutput(code=0, stdout="[" * 100_000),
        _said([]),
        _said({**RECORDED, "count": -1}),
        _said({**RECORDED, "packages": {"torch": 2}}),
    ],
)
def test_other_answers_are_unknown(answer: Any) -> None:
    """Never a pass, and fit for a screen."""
    with pytest.raises(ProbeParseError) as error:
        parse_software(answer)
    assert str(error.value).isprintable()


@given(JSON)
def test_no_answer_breaks_the_parsers(told: object) -> None:
    """Whatever JSON comes back is a value or Unparsed."""
    for parse in (parse_software, parse_listing):
        for answer in (_said(told), _said({**RECORDED, "packages": told, "variables": told})):
            try:
                parse(answer)
            except ProbeParseError:
                continue


@given(st.text())
def test_noise_before_the_answer(noise: str) -> None:
    """What start-up files print before it does no harm."""
    assert parse_script_output(CommandOutput(code=0, stdout=f"{noise}\n" + json.dumps(RECORDED) + "\n")) == RECORDED


def test_setup_comes_first() -> None:
    """Its lines run in bash, and what they print stays out of the answer, as do the values of secrets."""
    node = Node(
        name="n1", python=sys.executable, setup=("echo noise", "export NCCL_DEBUG=TRACE HF_CREDENTIAL=hunter22")
    )
    done = subprocess.run(build_inventory_command(node).argv, capture_output=True, text=True, check=True)
    told = parse_software(CommandOutput(code=0, stdout=done.stdout))
    assert done.stdout.count("\n") == 1
    assert told.variables["NCCL_DEBUG"] == "TRACE"
    assert told.variables["HF_CREDENTIAL"].startswith("hidden ")


@pytest.fixture
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site-packages of a virtual environment that has nothing in it; its Python is two folders up, in `bin`."""
    home = tmp_path_factory.mktemp("venv")
    packages = home / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    (home / "bin").mkdir()
    real = Path(sys.executable).resolve()
    (home / "bin/python").symlink_to(real)
    (home / "pyvenv.cfg").write_text(f"home = {real.parent}\ninclude-system-site-packages = false\n")
    return packages


def _run(*words: str, bare: Path | None = None, **env: str) -> dict[str, Any]:
    python = sys.executable if bare is None else str(bare.parents[2] / "bin/python")
    secrets = ["|".join(SECRET_WORDS)] if words[0] == "facts" else []
    argv = [python, "-Sc", SCRIPT, *words[:2], *secrets, *words[2:]]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=env)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_the_script_obeys_pth_files_and_runs_their_code_only_if_it_must(bare: Path, tmp_path: Path) -> None:
    """A path in them counts at once; code in them costs a start, and waits for a module that isn't found without it."""
    elsewhere = tmp_path / "elsewhere"
    for name in ("numpy-2.0.0.dist-info", "numpy"):
        (elsewhere / name).mkdir(parents=True)
    (elsewhere / "numpy/__init__.py").touch()
    ran = tmp_path / "ran"
    (bare / "a.pth").write_text(f"# a comment\n{elsewhere}\nimport pathlib; pathlib.Path({str(ran)!r}).touch()\n")
    assert _run("facts", "", bare=bare)["packages"] == {"numpy": "2.0.0"}
    assert not ran.exists()
    (elsewhere / "peft-0.1.dist-info").mkdir()
    (bare / "b.pth").write_text(f"import sys; sys.path.append({str(tmp_path / 'hooked')!r})\n")
    (tmp_path / "hooked/peft").mkdir(parents=True)
    assert _run("facts", "", bare=bare)["packages"] == {"numpy": "2.0.0", "peft": "0.1"}


def test_a_child_of_the_agent_sees_what_ranks_see(bare: Path, tmp_path: Path) -> None:
    """The agent ignores PYTHONPATH and the user's packages; asked in a child of it, the script tells the same."""
    (tmp_path / "numpy-2.0.0.dist-info").mkdir()
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy/__init__.py").touch()
    env = {"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path / "home")}
    python = str(bare.parents[2] / "bin/python")
    told = [
        json.loads(subprocess.run([python, flags, SCRIPT, "list", ""], capture_output=True, check=True, env=env).stdout)
        for flags in ("-Sc", "-ISc")
    ]
    assert told[0] == told[1]
    assert told[0]["packages"]["numpy"] == "2.0.0"


def test_a_program_is_looked_for_with_the_variables_of_its_ranks(tmp_path: Path) -> None:
    """What a script exported before its launcher, or aboard.yaml set for a node; relative to the directory of ranks."""
    (tmp_path / "src2/mypkg").mkdir(parents=True)
    (tmp_path / "src2/mypkg/run.py").touch()
    node = Node(name="n1", python=sys.executable, workdir=str(tmp_path), env={"NCCL_DEBUG": "INFO"})
    program = Program(kind=ProgramKind.MODULE, target="mypkg.run")
    subject = build_subject(program).with_variables({"PYTHONPATH": "src2:"})
    ask = subject.probes[0].question
    assert not isinstance(ask, ProbeCommand | ProbeFiles)
    question = ask(node)
    assert isinstance(question, ProbeCommand)
    assert question.describe()["env"] == {"NCCL_DEBUG": "INFO", "PYTHONPATH": f"{tmp_path}/src2:{tmp_path}/"}
    argv = [sys.executable, "-Sc", SCRIPT, *question.argv[1:]]
    told = subprocess.run(argv, capture_output=True, text=True, check=True, env=dict(question.env))
    assert json.loads(told.stdout)["program"]["module"] == f"{tmp_path}/src2/mypkg/run.py"


def test_a_node_whose_agent_runs_on_the_ranks_python_starts_no_other() -> None:
    """With `setup` lines or another interpreter, that one is started and asked."""
    assert build_inventory_command(Node(name="n1", python="/opt/python")).source == SCRIPT
    for other in (
        Node(name="n1", setup=("module load cuda",)),
        Node(name="n1", interpreter=Interpreter(path="/venv/bin/python", origin=InterpreterSource.VIRTUAL_ENV)),
        Node(name="n1", transport=TransportKind.LOCAL),
    ):
        assert build_inventory_command(other).source is None


def test_the_script_reads_packages_without_importing_them(bare: Path, tmp_path: Path) -> None:
    """Names and versions come from metadata, CUDA from torch's version file; the first on the path wins."""
    for name in ("torch-2.7.1.dist-info", "Nvidia_NCCL.cu12-2.26.2.dist-info", "old-lib-1.0-py3.11.egg-info"):
        (tmp_path / name).mkdir()
    (tmp_path / "~orch-2.6.0.dist-info").mkdir()
    (tmp_path / "numpy-2.0.0.dist-info").mkdir()
    (tmp_path / "dev.egg-info").mkdir()
    (tmp_path / "dev.egg-info/PKG-INFO").write_text("Name: dev\nVersion: 0.3\n")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch/version.py").write_text(
        "__version__ = '2.7.1+cu126'\ncuda: Optional[str] = '12.6'\nhip = None\n"
    )
    later = tmp_path / "later"
    (later / "torch-9.dist-info").mkdir(parents=True)
    path = f"{tmp_path}:{later}"
    told = _run("facts", "", bare=bare, PYTHONPATH=path, NCCL_PROTO="LL", HF_TOKEN=str(later))
    # numpy's metadata without numpy is a package that can't be imported.
    assert told["packages"] == {"torch": "2.7.1", "cuda": "12.6", "nccl": "2.26.2"}
    assert told["variables"]["NCCL_PROTO"] == "LL"
    assert told["variables"]["HF_TOKEN"].startswith("hidden ")
    everything = _run("list", "", bare=bare, PYTHONPATH=path)["packages"]
    assert everything == {
        "dev": "0.3",
        "numpy": "2.0.0",
        "nvidia-nccl-cu12": "2.26.2",
        "old-lib": "1.0",
        "torch": "2.7.1",
    }


def test_the_script_reads_code_and_nothing_else(tmp_path: Path) -> None:
    """Code and settings count; environments, outputs, caches and hidden things don't; neither does their age."""
    for path in (
        "a.py",
        "b/run.sh",
        "b/c.yaml",
        "data.bin",
        "outputs/x.json",
        ".x/y.py",
        "env/lib/z.py",
        "checkpoint-5/m.py",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    (tmp_path / "env/pyvenv.cfg").touch()
    (tmp_path / "link.py").symlink_to("/nowhere")
    (tmp_path / ".git/refs/heads").mkdir(parents=True)
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / ".git/refs/heads/main").write_text("0123456789abcdef0123\n")
    first = _run("facts", str(tmp_path))
    assert sorted(_run("list", str(tmp_path))["files"]) == ["a.py", "b/c.yaml", "b/run.sh"]
    assert (first["files"], first["cut"], first["commit"]) == (3, False, "0123456789ab")
    (tmp_path / "data.bin").write_text("other")
    assert _run("facts", str(tmp_path))["code"] == first["code"]
    (tmp_path / "b/run.sh").write_text("other")
    assert _run("facts", str(tmp_path))["code"] != first["code"]


def test_the_script_stops_at_its_bounds(tmp_path: Path) -> None:
    """More files than are looked at are cut, and said to be."""
    for number in range(2_005):
        (tmp_path / f"{number}.py").touch()
    told = _run("facts", str(tmp_path))
    assert (told["files"], told["cut"]) == (2_000, True)


def test_a_directory_that_is_not_there_has_no_code() -> None:
    """That it is missing is for storage to say."""
    assert _run("facts", "/no/such/place")["code"] == ""


def test_every_code_has_a_story() -> None:
    """Also those that no other test here meets."""
    codes = {story.code for story in SUBJECT.diagnoses}
    assert codes == {
        *(f"software-{word}" for word in ("python", "python-path", "torch", "nccl", "cuda", "rocm")),
        *(f"software-{word}" for word in ("package", "environment", "code", "config", "variable")),
        *(f"software-interpreter{word}" for word in ("", "-login", "-unsafe")),
        *(f"software-{word}" for word in ("program", "program-differs", "import", "path")),
        "unknown-software",
        "unknown-environment",
    }
