"""`aboard check` of software on real hosts: the node that differs is named, and the fix, typed as it is, mends it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aboard.sandbox import Sandbox
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.host.python_interpreter import OtherPython

pytestmark = pytest.mark.ground

DRIVER = Path(__file__).parent / "drivers" / "some_subjects.py"
JOB = "/private/job"
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


def check(box: Sandbox, *words: str, how: str = "quick") -> list[dict[str, Any]]:
    done = box.head.run([sys.executable, "-c", DRIVER.read_text(), how, "software", "n[1-4]", *words], timeout=90)
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
def library(box: Sandbox) -> Iterator[None]:
    """An environment of the same packages on every node, from an index that all can reach."""
    box.head.run(["python3", "-c", MAKE_WHEELS])
    for host in box.nodes:
        host.run(["sh", "-c", "mkdir -p ~/.config/pip; cat > ~/.config/pip/pip.conf"], input=PIP_CONF)
        pip(box, host.name, *USUAL)
    yield
    for host in box.nodes:
        host.run(["sh", "-c", "rm -rf ~/.config ~/.local ~/.cache"])
    box.head.run(["rm", "-rf", "/shared/wheels"])


@pytest.fixture
def job(box: Sandbox) -> Iterator[str]:
    """The same code in a directory of its own on each node."""
    for host in box.nodes:
        write = f"mkdir -p {JOB}/lib; cd {JOB}; echo 1 > train.py; echo 2 > lib/model.py; echo 3 > ds_config.json"
        host.run(["sh", "-c", write])
    yield f"cluster.workdir={JOB}"
    for host in box.nodes:
        host.run(["rm", "-rf", JOB])


def test_no_torch_anywhere(box: Sandbox) -> None:
    """Nodes that have nothing to import are alike."""
    assert check(box) == []


def test_healthy(box: Sandbox, library: None, job: str) -> None:
    """The same packages and the same code everywhere: nothing to say."""
    assert check(box, job) == []
    assert check(box, job, how="full") == []


def test_another_torch(box: Sandbox, library: None) -> None:
    """The node with another torch is named once, with what came along below it; the fixes install the usual one."""
    pip(box, "n3", "torch==2.6.0", "nvidia-nccl-cu12==2.21.5")
    findings = check(box)
    assert told(findings) == [("software-torch", "block", ["n3"])]
    assert findings[0]["seen"] == "torch: n3 has 2.6.0, n[1-2,4] have 2.7.1"
    below = findings[0]["consequences"]
    assert [each["code"] for each in below] == ["software-cuda", "software-nccl"]
    mend(box, findings[0])
    assert told(check(box)) == [("software-nccl", "block", ["n3"])]
    mend(box, below[1])
    assert check(box) == []


def test_torch_is_missing(box: Sandbox, library: None) -> None:
    """A Python that can't find torch is as bad as one without it."""
    with inject_temporarily(box, box.host("n2"), OtherPython(without="torch")):
        findings = check(box)
        assert told(findings) == [("software-torch", "block", ["n2"]), ("software-python-path", "info", ["n2"])]
        assert findings[0]["seen"] == "torch: n2 has none, n[1,3-4] have 2.7.1"
    assert check(box) == []


def test_another_library(box: Sandbox, library: None) -> None:
    """Another transformers is a warning, another small package worth a line; both can be mended as said."""
    pip(box, "n4", "transformers==4.51.3", "tomli-w==1.1.0")
    findings = check(box)
    assert told(findings) == [("software-package", "warn", ["n4"]), ("software-environment", "info", ["n4"])]
    assert "tomli-w 1.1.0 instead of 1.2.0" in findings[1]["seen"]
    for finding in findings:
        mend(box, finding)
    assert check(box) == []


def test_another_python(box: Sandbox, library: None) -> None:
    """A python3 that is another program is named, with its version."""
    with inject_temporarily(box, box.host("n4"), OtherPython(program=sys.executable)):
        findings = [each for each in check(box) if each["code"].startswith("software-python")]
        assert [each["nodes"] for each in findings] == [["n4"]]
    assert check(box) == []


def test_setup_lines_are_obeyed(box: Sandbox, library: None) -> None:
    """What `setup:` sets up is what is compared: without the user's own packages, another torch is none."""
    pip(box, "n3", "torch==2.6.0")
    found = check(box, "cluster.setup=echo hello; export PYTHONNOUSERSITE=1")
    pip(box, "n3", "torch==2.7.1")
    assert found == []


def test_code_that_differs(box: Sandbox, library: None, job: str) -> None:
    """An edit on one node and a file that it lacks are named; the fix copies both from a node that has the usual."""
    box.host("n3").run(["sh", "-c", f"cd {JOB}; echo 7 > train.py; rm lib/model.py"])
    findings = check(box, job)
    assert told(findings) == [("software-code", "block", ["n3"])]
    assert "compared with n1: different: train.py; missing: lib/model.py" in findings[0]["seen"]
    mend(box, findings[0])
    assert check(box, job) == []


def test_settings_that_differ(box: Sandbox, library: None, job: str) -> None:
    """Another ds_config.json is a warning, an extra file worth a line."""
    box.host("n1").run(["sh", "-c", f"echo 9 > {JOB}/ds_config.json"])
    box.host("n4").run(["sh", "-c", f"echo 9 > {JOB}/scratch.py"])
    findings = check(box, job)
    assert told(findings) == [("software-config", "warn", ["n1"]), ("software-code", "info", ["n4"])]
    mend(box, findings[0])
    assert told(check(box, job)) == [("software-code", "info", ["n4"])]


def test_two_at_once(box: Sandbox, library: None, job: str) -> None:
    """Another torch here and other code there are two findings, each on its node."""
    pip(box, "n2", "torch==2.6.0")
    box.host("n3").run(["sh", "-c", f"echo 7 > {JOB}/train.py"])
    findings = check(box, job)
    assert told(findings) == [("software-torch", "block", ["n2"]), ("software-code", "block", ["n3"])]
    for finding in findings:
        mend(box, finding)
    assert check(box, job) == []


def test_variables(box: Sandbox, library: None) -> None:
    """A variable that one node's start-up file sets is named, a token never shown; one value for all mends it."""
    lines = "export NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME=eth7 HF_TOKEN=hf_nobody_sees_this\n"
    box.host("n3").run(["sh", "-c", "cat > ~/.bashrc"], input=lines)
    try:
        findings = check(box)
        mended = check(box, "cluster.env.NCCL_DEBUG=WARN", "cluster.env.HF_TOKEN=x")
    finally:
        box.host("n3").run(["sh", "-c", ": > ~/.bashrc"])
    assert told(findings) == [("software-variable", "warn", ["n3"])] * 2
    assert findings[1]["seen"] == "NCCL_DEBUG: n3 has INFO, n[1-2,4] have no value"
    assert "hf_nobody" not in json.dumps(findings)
    assert mended == []
    assert check(box) == []
