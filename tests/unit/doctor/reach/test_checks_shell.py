"""The shell that ranks get: real `sh` runs the script, and the failing line is told."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.probes.facts import Facts, Unknown
from aboard.diagnoses import Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.reach.rank_shell import SHELL, SetupFailure, ShellReady, _parse_shell_reply
from aboard.doctor.reach.subject import SUBJECT
from aboard.engine.check.check_cluster import CheckReport, check_cluster


def _check(*setup: str, **fields: Any) -> CheckReport:
    node = Node(name="me", transport=TransportKind.LOCAL, setup=setup, **fields)
    return asyncio.run(check_cluster(Cluster(nodes=(node,)), (SUBJECT,)))


def _seen(report: CheckReport) -> list[tuple[str, str]]:
    return [(finding.code, finding.seen) for finding in report.findings]


def test_lines_that_work() -> None:
    """Each sees what those before it did, prints what it likes, and has no arguments to stumble over."""
    report = _check("X=5", "echo noise; echo 'at 3'", '[ "$X$#" = 50 ]', "exec >/dev/null")
    assert _seen(report) == []
    shells = SHELL.outcome(report.facts)
    assert shells is not None
    assert not isinstance(shells, Unknown)
    assert isinstance(shells["me"], ShellReady)
    assert "Max open files" in shells["me"].limits


@pytest.mark.parametrize(
    ("line", "said", "fix"),
    [
        ("module load cuda", "module: command not found", "modules.sh"),
        ("source /opt/venv/bin/activate", "No such file or directory", "bash"),
        ("conda activate x", "conda: command not found", "conda.sh"),
        (". /nowhere/activate", "No such file", "bash -c"),
        ("if then", "yntax error", "bash -c"),
        ("exit 0", "the shell exited with code 0", "bash -c"),
        ("false", "the shell exited with code 1", "bash -c"),
    ],
)
def test_the_failing_line_is_named(line: str, said: str, fix: str) -> None:
    """With its number, its own words and what to write instead; lines after it don't matter."""
    report = _check("true", line, "false")
    (finding,) = report.findings
    assert (finding.code, finding.severity) == ("reach-setup", Severity.BLOCK)
    assert finding.seen.startswith(f"line 2 of `setup`, `{line}`, failed: ")
    assert said in finding.seen
    assert fix in finding.fix


def test_a_python_that_is_not_there() -> None:
    """Looked for in that shell, after the lines: a line that empties PATH loses it."""
    assert _seen(_check(python="/nowhere/python3")) == [("reach-no-python", "the shell can't find /nowhere/python3")]
    assert _seen(_check("PATH=/nowhere")) == [
        ("reach-no-python", "the shell can't find python3 after its `setup` lines")
    ]


def test_the_fix_is_the_whole_setting() -> None:
    """What to write stands there as it is written, with the lines that were there already."""
    (finding,) = _check("true", "module load cuda").findings
    wanted = 'setup: ["true", ". /etc/profile.d/modules.sh", "module load cuda"]    # in aboard.yaml, under cluster:;'
    assert finding.fix.startswith(wanted)
    (lost,) = _check("PATH=/nowhere").findings
    assert lost.fix.startswith('setup: ["PATH=/nowhere:$PATH"]    # in aboard.yaml, under cluster:;')
    (gone,) = _check('unset "PATH"; PATH=/').findings
    assert gone.fix.startswith("python: /")


def test_nodes_that_fail_alike_are_one_finding() -> None:
    """A line of the whole cluster that fails everywhere is said once."""
    nodes = tuple(Node(name=name, setup=("module load x",)) for name in ("n1", "n2", "n3"))
    failed = SetupFailure(line=1, said=Untrusted("module: command not found"))
    held: dict[str, Any] = {
        SHELL.name: {"n1": failed, "n2": failed, "n3": SetupFailure(line=1, said=Untrusted("other"))}
    }
    findings = SUBJECT.judge(Facts(cluster=Cluster(nodes=nodes), contacts={}, outcomes=held))
    assert [finding.nodes for finding in findings] == [("n1", "n2"), ("n3",)]
    assert "in aboard.yaml, for n[1-2];" in findings[0].fix


def test_lines_are_run_where_and_with_what_ranks_have() -> None:
    """The node's `workdir` and `env` are theirs."""
    assert _seen(_check('[ "$PWD" = / ]', '[ "$COLOUR" = red ]', workdir="/", env={"COLOUR": "red"})) == []


def test_a_secret_is_not_repeated() -> None:
    """A shell says which command it didn't find; a token is not shown."""
    report = _check("$HF_TOKEN", env={"HF_TOKEN": "hf_abcdefgh"})
    assert "hf_abcdefgh" not in str(report.findings)
    assert "$HF_TOKEN" in report.findings[0].seen


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"stdout": 5, "stderr": None},
        {"stdout": "at 7\n", "stderr": ""},
        {"stdout": "at \u00b2\n"},
        {"stdout": "", "stderr": "sh: can't fork"},
    ],
)
def test_a_reply_that_makes_no_sense_is_unknown(reply: Mapping[str, Any]) -> None:
    """It is told as such, never a pass."""
    node = Node(name="n1", setup=("true",))
    assert isinstance(_parse_shell_reply(node, reply), Unknown)
    facts = Facts(
        cluster=Cluster(nodes=(node,)), contacts={}, outcomes={SHELL.name: {"n1": _parse_shell_reply(node, reply)}}
    )
    (finding,) = SUBJECT.judge(facts)
    assert (finding.code, finding.severity) == ("unknown-shell", Severity.WARN)


def test_a_line_that_does_not_end() -> None:
    """The time-out names the line at which it was."""
    outcome = _parse_shell_reply(Node(name="n1", setup=("a", "b")), {"stdout": "at 1\nat 2\n", "timed_out": True})
    assert outcome == SetupFailure(line=2, said=Untrusted("timed out after 20 s"))
