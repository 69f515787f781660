"""What is printed: a row for each text that was once untrue, unclear or a dead end."""

import asyncio
import io
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from evidence_builders import ending
from made_events import made_event
from rich.console import Console
from typed_commands import aboard

from aboard.commands.shared.error_message import show_error
from aboard.commands.trust.node_access import Access
from aboard.config.node_entries import parse_node_names
from aboard.config.starter_file import format_starter_file
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import UnreachedNode
from aboard.core.cluster.discovery import DiscoveredCluster, DiscoveredNode
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.evidence.node_snapshot import CollectiveRecord
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.launchers.capture_failures import build_no_launcher_error
from aboard.core.plan.launch_request import LaunchRequest, describe_unused_master
from aboard.core.plan.plan import MasterAddress, NodePlan, Plan, Start
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.run.lease import Lease
from aboard.core.run.recovery.recovery_policy import RecoverySettings
from aboard.core.run.run_state import Run
from aboard.core.slurm.batch_script import describe_missing_cores
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.diagnoses import AboardError, Advice, Diagnosis, Shell, Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.usage import commands
from aboard.doctor.hang.collective_hang import format_collective
from aboard.engine.request.launch_options import LaunchOptions
from aboard.engine.request.node_arguments import NodeArguments
from aboard.record.run_record import Record
from aboard.record.runs import Runs
from aboard.transport.slurm.slurm_commands import run_slurm_command

SCRIPT = Program(kind=ProgramKind.SCRIPT, target="train.py")
NODES = Cluster(nodes=(Node(name="n1"), Node(name="n2")), source="typed")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of the user's own: runs, files and variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def end_run(code: int) -> str:
    run = Runs.of({"XDG_STATE_HOME": str(Path("state").resolve())}).create(datetime.now(UTC), Random(1))  # noqa: S311 - a name
    record = Record.open(run, ranks=1)
    record.event(made_event("generation", node="", at=0.0, number=1))
    record.event(made_event("finished", node="", at=1.0, why="rank 0 exited", code=code))
    record.close()
    return aboard("why").stdout.splitlines()[0]


def stop_one_of_two() -> str:
    runs = Runs.of({"XDG_STATE_HOME": str(Path("state").resolve())})
    with ExitStack() as stack:
        for seed in (1, 2):
            stack.callback(runs.create(datetime(2026, 11, 19, seed, tzinfo=UTC), Random(seed)).claim().release)  # noqa: S311 - a name
        return aboard("stop").stderr


def explain_log_file() -> str:
    Path("train.log").write_text("RuntimeError: boom\n")
    return aboard("why", "train.log").stderr


def lose_node(transport: TransportKind) -> str:
    parts = tuple(
        NodePlan(node=Node(name=name, transport=transport), starts=(Start(child=str(rank), argv=("x",), rank=rank),))
        for rank, name in enumerate(("n1", "n2"))
    )
    run = Run.replay("r", [made_event("cut", node="n2", at=6.0, why="it did not reply")])
    plan = Plan(run="r", program=SCRIPT, master=MasterAddress(node="n1", address="10.0.0.1"), parts=parts)
    return ending(Evidence(run=run, plan=plan, now=7.0))[0].fix


def fail_script(end: str) -> str:
    return build_no_launcher_error("n1", ["./run.sh"], end, ["aboard", "launch"]).fix


def write_starter() -> str:
    problem = UnreachedNode(reason=UnreachableReason.KEY_REFUSED, said="…")
    found = DiscoveredCluster(source="typed", workdir="/x", nodes=(DiscoveredNode(name="n1", problem=problem),))
    return format_starter_file(parse_node_names(("n1",)), found)


def show_on_narrow_terminal(error: AboardError) -> str:
    out = io.StringIO()
    show_error(Console(file=out, width=60, force_terminal=True, no_color=True, highlight=False), error)
    return "\n".join(line.rstrip() for line in out.getvalue().replace("\x1b[0m", "").splitlines())


def name_master(request: LaunchRequest) -> str:
    return "".join(describe_unused_master(NODES, request, {"MASTER_ADDR": "192.168.0.9"}))


ADVISED = Diagnosis(
    code="test-advised",
    title="an odd flag",
    explanation="It is odd.",
    fixes=Advice("write a whole number after the flag that you have typed, or leave the flag out"),
)
REQUEST = LaunchRequest(program=SCRIPT)
# What is rendered, the texts expected, those that must not appear.
ROWS: dict[str, tuple[Callable[[], str], tuple[str, ...], tuple[str, ...]]] = {
    "a run that failed": (lambda: end_run(1), (" failed ", "s ago"), ("is failed", ", 0")),
    "a run that finished": (lambda: end_run(0), (" finished ", "s ago"), ("is finished",)),
    "a barrier": (
        lambda: format_collective(CollectiveRecord(seq=1, op="gloo:barrier", over=False, sizes="[[[], [], []]]")),
        ("barrier()",),
        ("of [", "gloo"),
    ),
    "a collective with sizes": (
        lambda: format_collective(CollectiveRecord(seq=1, op="nccl:all_reduce", over=False, sizes="[[10]]")),
        ("all_reduce of [10]",),
        ("nccl",),
    ),
    "a node with a number": (
        lambda: aboard("check", "n1:2").stderr,
        ("for 2 ranks on each node, add `--ranks 2` to launch or train", "for 2 slots on n1 alone", "port: 2"),
        (),
    ),
    "why with a log": (explain_log_file, ("aboard why --log train.log",), ("did you mean",)),
    "two active runs": (stop_one_of_two, ("2 runs are active", "stop 20261119-0100-", "stop 20261119-0200-"), ()),
    "a remark beside a fix": (
        lambda: show_on_narrow_terminal(AboardError(commands.WHY_CODE, "there is no code or run 'x'", "list")),
        ("# lists all codes; aboard status lists all runs\n", "\n       aboard why --codes"),
        ("codes    #",),
    ),
    "advice on a narrow terminal": (
        lambda: show_on_narrow_terminal(AboardError(ADVISED, "it is odd")),
        ("  fix  write a whole number after the flag that you have\n       typed, or leave the flag out",),
        (),
    ),
    "break --list of a named sandbox": (
        lambda: aboard("sandbox", "break", "--list", "--name", "other").stdout,
        ("Example: aboard sandbox break drop",),
        (),
    ),
    "aboard.yaml before trust": (
        write_starter,
        ("# aboard init did not reach it: key refused",),
        ("next command", "aboard trust"),
    ),
    "a script without its x bit": (
        lambda: fail_script("could not start: can't start ./run.sh: Permission denied"),
        ("chmod +x ./run.sh",),
        ("read its output",),
    ),
    "a script that failed": (lambda: fail_script("ended with exit code 1"), ("read its output",), ("chmod",)),
    "a lost node of a job": (
        lambda: lose_node(TransportKind.SLURM),
        ("sinfo -R --nodes=n2", "--exclude=n2"),
        ("aboard check",),
    ),
    "a lost node": (lambda: lose_node(TransportKind.SSH), ("aboard check n2",), ("sinfo",)),
    "one core per node": (
        lambda: str(describe_missing_cores(SlurmSettings(nodes=2), "PartitionName=debug Default=YES", "")),
        ("add --exclusive --mem=0 to the command, or to cluster.slurm.extra",),
        ("extra: [",),
    ),
    "another MASTER_ADDR in the shell": (lambda: name_master(REQUEST), ("MASTER_ADDR=192.168.0.9", "not used"), ()),
    "a MASTER_ADDR that was asked for": (
        lambda: f"[{name_master(replace(REQUEST, master_address='10.0.0.1'))}]",
        ("[]",),
        ("MASTER_ADDR",),
    ),
}


@pytest.mark.parametrize(("render", "expected", "absent"), ROWS.values(), ids=ROWS)
def test_a_text_says_this_and_not_that(
    render: Callable[[], str], expected: tuple[str, ...], absent: tuple[str, ...]
) -> None:
    """What is printed contains each expected text, and none of those that were wrong."""
    said = render()
    assert [text for text in expected if text not in said] == [], said
    assert [text for text in absent if text in said] == [], said


@pytest.mark.parametrize(
    ("seen", "asks"),
    [
        ("crew@n1: Permission denied (publickey).", False),
        ("crew@n1: Permission denied (publickey,gssapi-with-mic).", False),
        ("crew@n1: Permission denied (publickey,password).", True),
        ("crew@n1: Permission denied (publickey,keyboard-interactive).", True),
        ("Received disconnect from n1: Too many authentication failures", True),
    ],
)
def test_a_password_is_announced_only_where_sshd_takes_one(seen: str, *, asks: bool) -> None:
    """A refused login lists the methods that sshd accepts; without that list, ssh may still ask."""
    refused = Unreachable(UnreachableReason.KEY_REFUSED, seen)
    assert Access(identity=None, terminal=True, typed=Shell()).may_ask(refused) is asks
    assert not Access(identity=None, terminal=False, typed=Shell()).may_ask(refused)


def test_a_job_that_only_waits_is_no_verdict() -> None:
    """Findings of the severity info never set the exit code: not of --log, and not of --nodes."""
    Path("squeue").write_text("   4711 debug train alice PD 0:00 4 (Priority)\n")
    explained = aboard("why", "--log", "squeue")
    assert "slurm-waiting" in explained.stdout
    assert explained.code == 0


def test_a_job_gets_the_locale_of_the_shell_that_submits_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sbatch hands its variables on to the job; what only prints for Aboard prints in English."""
    for name in ("sbatch", "squeue"):
        (home / name).write_text("#!/bin/sh\necho $LC_ALL $SLURM_TIME_FORMAT\n")
        (home / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(home))
    env = {"LC_ALL": "de_DE.UTF-8", "PATH": str(home)}
    said = [asyncio.run(run_slurm_command([name], env=env)).stdout for name in ("sbatch", "squeue")]
    assert said == ["de_DE.UTF-8\n", "C standard\n"]


def test_the_launch_tells_ranks_the_restarts_of_its_options_and_notes_an_unused_master() -> None:
    """Whatever asked for restarts: the command line, aboard.yaml or a pasted launcher."""
    environ = {"MASTER_ADDR": "192.168.0.9"}
    where = NodeArguments(nodes=(), hostfile=None, include="", exclude="", sets=(), environ=environ)
    options, recovery = LaunchOptions(check="full"), RecoverySettings(restarts=3)
    lease = Lease(seconds=20.0, grace=5.0)
    spec = options.build_spec(where, NODES, REQUEST, ("first",), lease=lease, recovery=recovery)
    assert (spec.request.restarts, spec.recovery) == (3, recovery)
    assert [note.partition(" ")[0] for note in spec.notes] == ["first", "MASTER_ADDR=192.168.0.9"]
