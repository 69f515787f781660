"""`aboard check` of software on real hosts: the node that differs is named, and the fix, typed as it is, mends it."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from launching import build_sandbox

from aboard.sandbox import Sandbox
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.host.python_interpreter import OtherPython

pytestmark = pytest.mark.ground

DRIVER = Path(__file__).parent / "drivers" / "some_subjects.py"
JOB = "/private/job"
WORKDIR = f"cluster.workdir={JOB}"
VARIABLES = "export NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME=eth7 HF_TOKEN=hf_nobody_sees_this\n"
USUAL = ("torch==2.7.1", "nvidia-nccl-cu12==2.26.2", "transformers==4.52.0", "tomli-w==1.2.0")
# Wheels of packages that aren't what they are called, and that must not be imported by a check.
MAKE_WHEELS = """
import os, zipfile
os.makedirs("/shared/wheels")
for name, module, version, extra in [
    ("torch", "torch", "2.7.1", {"torch/version.py": "__version__ = '2.7.1+cu126'\\ncuda: Optional[str] = '12.6'\\n"}),
    ("torch", "torch", "2.6.0", {"torch/version.py": "__version__ = '2.6.0+cu124'\\ncuda: Optional[str] = '12.4'\\n"}),
    ("nvidia_nccl_cu12", "nvidia/nccl", "2.26.2", {}),
    ("nvidia_nccl_cu12", "nvidia/nccl", "2.21.5", {}),
    ("transformers", "transformers", "4.52.0", {}),
    ("transformers", "transformers", "4.51.3", {}),
    ("tomli_w", "tomli_w", "1.2.0", {}),
    ("tomli_w", "tomli_w", "1.1.0", {}),
]:
    info = f"{name}-{version}.dist-info"
    files = {
        f"{module}/__init__.py": "raise SystemExit('a check has imported me')\\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        **extra,
    }
    record = "".join(f"{path},,\\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(f"/shared/wheels/{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)
"""
PIP_CONF = """[global]
no-index = true
find-links = /shared/wheels
user = true
break-system-packages = true
no-compile = true
"""


def check(box: Sandbox, *words: str, nodes: str = "n[1-8]", how: str = "quick") -> list[dict[str, Any]]:
    done = box.head.run([sys.executable, "-c", DRIVER.read_text(), how, "software", nodes, *words], timeout=90)
    assert done.stdout, done.stderr
    findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return findings


def told(findings: list[dict[str, Any]]) -> list[tuple[str, str, list[str]]]:
    return [(each["code"], each["severity"], each["nodes"]) for each in findings]


def mend(box: Sandbox, finding: dict[str, Any]) -> None:
    done = box.head.run(["sh", "-c", finding["fix"]], timeout=60)
    assert done.returncode == 0, done.stderr


def pip(box: Sandbox, node: str, *packages: str) -> None:
    done = box.host(node).run(["python3", "-m", "pip", "install", *packages], timeout=90)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def alike() -> Iterator[Sandbox]:
    """Nodes with the same packages, from an index that all can reach, and the same code in a directory of its own."""
    with build_sandbox("software", nodes=8) as box:
        box.head.run(["python3", "-c", MAKE_WHEELS])
        for host in box.nodes:
            host.run(["sh", "-c", "mkdir -p ~/.config/pip; cat > ~/.config/pip/pip.conf"], input=PIP_CONF)
            write = f"mkdir -p {JOB}/lib; cd {JOB}; echo 1 > train.py; echo 2 > lib/model.py; echo 3 > ds_config.json"
            host.run(["sh", "-c", write])
        # pip takes a second of a core on each node, a copy does not.
        pip(box, "n1", *USUAL)
        box.host("n1").run(["sh", "-c", "cd; tar -cf /shared/packages.tar .local"]).check_returncode()
        for host in box.nodes[1:]:
            host.run(["sh", "-c", "cd; tar -xf /shared/packages.tar"]).check_returncode()
        yield box


@dataclass(frozen=True, kw_only=True)
class Reports:
    """What checks said of nodes of which some differ, and when they are mended as they said."""

    differing: list[dict[str, Any]]
    without_own_packages: list[dict[str, Any]]
    with_variables: list[dict[str, Any]]
    half_mended: list[dict[str, Any]]
    mended: list[dict[str, Any]]


@pytest.fixture(scope="module")
def reports(alike: Sandbox) -> Reports:
    """n3 has another torch, n4 another library, n5 other code, n6 another setting, n7 another file, n8 variables."""
    pip(alike, "n3", "torch==2.6.0", "nvidia-nccl-cu12==2.21.5")
    pip(alike, "n4", "transformers==4.51.3", "tomli-w==1.1.0")
    alike.host("n5").run(["sh", "-c", f"cd {JOB}; echo 7 > train.py; rm lib/model.py"])
    alike.host("n6").run(["sh", "-c", f"echo 9 > {JOB}/ds_config.json"])
    alike.host("n7").run(["sh", "-c", f"echo 9 > {JOB}/scratch.py"])
    alike.host("n8").run(["sh", "-c", "cat > ~/.bashrc"], input=VARIABLES)
    differing = check(alike, WORKDIR)
    without = check(alike, "cluster.setup=echo hello; export PYTHONNOUSERSITE=1", nodes="n[1-3]")
    values = ("cluster.env.NCCL_DEBUG=WARN", "cluster.env.HF_TOKEN=x")
    with_variables = check(alike, *values, nodes="n1,n2,n8")
    for finding in differing:
        if finding["code"] != "software-variable" and finding["nodes"] != ["n7"]:
            mend(alike, finding)
    alike.host("n8").run(["sh", "-c", ": > ~/.bashrc"])
    half = check(alike, WORKDIR)
    for finding in half:
        if finding["code"] == "software-nccl":
            mend(alike, finding)
    alike.host("n7").run(["rm", f"{JOB}/scratch.py"])
    return Reports(
        differing=differing,
        without_own_packages=without,
        with_variables=with_variables,
        half_mended=half,
        mended=check(alike, WORKDIR, how="full"),
    )


def find(findings: list[dict[str, Any]], node: str) -> list[dict[str, Any]]:
    return [each for each in findings if node in each["nodes"]]


def test_no_torch_anywhere(box: Sandbox) -> None:
    """Nodes that have nothing to import are alike."""
    assert check(box, nodes="n[1-4]") == []


@pytest.mark.xdist_group("check-software")
@pytest.mark.parametrize(
    ("node", "named", "seen"),
    [
        ("n1", [], ""),
        ("n2", [], ""),
        ("n3", [("software-torch", "block")], "torch: n3 has 2.6.0, n[1-2,4-8] have 2.7.1"),
        ("n4", [("software-package", "warn"), ("software-environment", "info")], "tomli-w 1.1.0 instead of 1.2.0"),
        ("n5", [("software-code", "block")], "compared with n1: different: train.py; missing: lib/model.py"),
        ("n6", [("software-config", "warn")], ""),
        ("n7", [("software-code", "info")], ""),
        ("n8", [("software-variable", "warn")] * 2, "NCCL_DEBUG: n8 has INFO, n[1-7] have no value"),
    ],
    ids=["alike", "alike too", "torch", "library", "code", "settings", "extra file", "variables"],
)
def test_each_node_that_differs_is_named(reports: Reports, node: str, named: list[tuple[str, str]], seen: str) -> None:
    """Each by itself, with what is usual; the fixes, typed as they stand, make all nodes alike again."""
    found = find(reports.differing, node)
    assert told(found) == [(code, severity, [node]) for code, severity in named]
    assert seen in "\n".join(each["seen"] for each in found)
    assert find(reports.mended, node) == []


@pytest.mark.xdist_group("check-software")
def test_what_came_along_with_another_torch(reports: Reports) -> None:
    """It stands below it; where the fix of torch alone is typed, NCCL is named by itself, with its own fix."""
    (finding,) = find(reports.differing, "n3")
    assert [each["code"] for each in finding["consequences"]] == ["software-cuda", "software-nccl"]
    assert told(find(reports.half_mended, "n3")) == [("software-nccl", "block", ["n3"])]


@pytest.mark.xdist_group("check-software")
def test_an_extra_file_is_left_to_the_user(reports: Reports) -> None:
    """All else is mended by then."""
    assert [told([each]) for each in reports.half_mended if each["nodes"] != ["n3"]] == [
        [("software-code", "info", ["n7"])]
    ]


@pytest.mark.xdist_group("check-software")
def test_setup_lines_are_obeyed(reports: Reports) -> None:
    """What `setup:` sets up is what is compared: without the user's own packages, another torch is none."""
    assert reports.without_own_packages == []


@pytest.mark.xdist_group("check-software")
def test_variables(reports: Reports) -> None:
    """A token that one node's start-up file sets is never shown; one value for all mends it."""
    assert "hf_nobody" not in json.dumps(reports.differing)
    assert reports.with_variables == []


@pytest.mark.xdist_group("check-software")
def test_torch_is_missing(alike: Sandbox, reports: Reports) -> None:
    """A Python that can't find torch is as bad as one without it."""
    with inject_temporarily(alike, alike.host("n2"), OtherPython(without="torch")):
        findings = check(alike, nodes="n[1-4]")
        assert told(findings) == [("software-torch", "block", ["n2"]), ("software-python-path", "info", ["n2"])]
        assert findings[0]["seen"] == "torch: n2 has none, n[1,3-4] have 2.7.1"
    assert check(alike, nodes="n[1-4]") == []


@pytest.mark.xdist_group("check-software")
def test_another_python(alike: Sandbox, reports: Reports) -> None:
    """A python3 that is another program is named, with its version."""
    with inject_temporarily(alike, alike.host("n4"), OtherPython(program=sys.executable)):
        findings = [each for each in check(alike, nodes="n[1-4]") if each["code"].startswith("software-python")]
        assert [each["nodes"] for each in findings] == [["n4"]]
    assert check(alike, nodes="n[1-4]") == []
