"""A launcher that a rank starts: how it is recognised, and what becomes of the run."""

import os
import shlex
import sys
from pathlib import Path

import pytest
from deadlines import until
from evidence_builders import evidence
from made_events import list_fields, made_event
from supervisor_runs import Run, held

from aboard.agent.inspect.launch_command import find_launch, find_start_elsewhere
from aboard.agent.inspect.launcher_detection import detect_launcher
from aboard.agent.supervisor.resource_usage import ResourceSampler
from aboard.core.evidence.node_snapshot import RankSnapshot
from aboard.core.plan.plan import Start
from aboard.core.run.end_decision import decide
from aboard.core.run.events import Event
from aboard.core.run.run_state import Run as RunState
from aboard.diagnoses import Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.death.rules import conclude_run
from aboard.transport.node_session import NodeSession


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("/opt/bin/python3.11 /opt/bin/torchrun --nnodes=2 x.py", "torchrun --nnodes=2 x.py"),
        ("torchrun x.py", "torchrun x.py"),
        ("python -u -X faulthandler -m torch.distributed.run x.py", "python -m torch.distributed.run x.py"),
        ("python3 -Xfaulthandler -W ignore -um torch.distributed.launch x", "python -m torch.distributed.launch x"),
        ("python -mdeepspeed.launcher.launch x.py", "python -m deepspeed.launcher.launch x.py"),
        ("python /x/accelerate launch x.py", "accelerate launch x.py"),
        (
            "python -m accelerate.commands.accelerate_cli launch x",
            "python -m accelerate.commands.accelerate_cli launch x",
        ),
        ("python3 /usr/bin/deepspeed --num_gpus 2 x.py", "deepspeed --num_gpus 2 x.py"),
        # What only looks like one.
        ("python train.py --launcher accelerate", ""),
        ("python train.py torchrun x.py", ""),
        ("python -u train.py -m torch.distributed.run", ""),
        ("python -W torchrun x.py", ""),
        ("python -X torchrun train.py", ""),
        ("python -c torchrun x", ""),
        ("python -m train torchrun launch", ""),
        ("python -m torch.distributed.runner x", ""),
        ("python -m torch.distributed.run", ""),
        ("torchrun --help", ""),
        ("accelerate config", ""),
        ("accelerate env launch", ""),
        ("python -m accelerate.commands.accelerate_cli test launch", ""),
        ("bash torchrun x.py", ""),
        ("grep torchrun x.py", ""),
        ("vim deepspeed x", ""),
        ("python torchrun.py x", ""),
        ("pythonic torchrun x", ""),
        ("", ""),
    ],
)
def test_only_the_program_or_the_module_counts(words: str, command: str) -> None:
    """A run may be stopped for it, so a word anywhere else is none."""
    assert " ".join(find_launch(words.split())) == command
    assert bool(detect_launcher(words.split())) == bool(command) or not command


@pytest.mark.parametrize(
    ("command", "starts"),
    [
        ("ssh n2 torchrun --nnodes 2 x.py", True),
        ("ssh -p 22 n2 'cd /w && nohup torchrun --nnodes 2 x.py > log 2>&1 &'", True),
        ("""ssh n2 "bash -lc 'source v/bin/activate; accelerate launch x.py'" """, True),
        ("pdsh -w n1,n2 'export A=1; python -m torch.distributed.run x.py'", True),
        ("/usr/bin/mpirun -np 4 python train.py", True),
        ("mpirun -np 4 ./train.py", True),
        ("mpirun -np 4 ./all_reduce_perf -b 8", False),
        ("mpirun --version", False),
        ("ssh n2 hostname", False),
        ("ssh n2 python3 prepare.py", False),
        ("ssh n2 'pkill -f torchrun -9; pip show deepspeed'", False),
        ("ssh n2 'ps aux | grep torchrun | wc -l'", False),
        ("scp torchrun x.py", False),
    ],
)
def test_what_would_start_ranks_on_other_nodes(command: str, starts: bool) -> None:  # noqa: FBT001 - a column
    """A launcher behind ssh, pdsh or mpirun, or a Python program behind mpirun; nothing that only looks."""
    assert bool(find_start_elsewhere(shlex.split(command))) == starts


# Stands for torch's launcher, so that no test imports torch.
RUN = "import time\ndef run(args): time.sleep(300)\nif __name__ == '__main__': run(None)\n"
CALLS = """
from types import SimpleNamespace
import torch.distributed.run as launcher
launcher.run(SimpleNamespace(training_script="x.py", training_script_args=["--key", "hunter2secret"], module=False))
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    folder = tmp_path / "packages" / "torch" / "distributed"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "run.py").write_text(RUN)
    return tmp_path / "packages"


@pytest.mark.ci
@pytest.mark.parametrize("how", ["module", "call", "child", "child without a beacon"])
def test_a_rank_that_starts_a_launcher_is_reported(clean: list[Run], packages: Path, how: str) -> None:
    """By its own command line, by a call, by a process that it starts: with the command, and without its secrets."""
    run = Run()
    clean.append(run)
    words = [sys.executable, "-m", "torch.distributed.run", "x.py", "--key", "hunter2secret"]
    argv: tuple[str, ...] = tuple(words)
    if how == "call":
        argv = (sys.executable, "-c", CALLS)
    elif how != "module":
        argv = (sys.executable, "-c", f"import subprocess; subprocess.run({words})")
    env = {"PYTHONPATH": str(packages), "SECRET": "hunter2secret"}
    start = Start(child="0", argv=argv, env=env, secrets=("SECRET",), beacon="without" not in how)

    async def story(hold: NodeSession) -> None:
        await hold.start(start)
        await until(lambda: "nested" in run.kinds("0"), 20)
        await hold.end(0.0)
        await until(lambda: "exited" in run.kinds("0"), 20)

    held(run, story)
    (found,) = [list_fields(event)["command"] for event in run.events if event.kind == "nested"]
    shown = [word.raw() for word in found]
    first = ["torchrun"] if how == "call" else ["python", "-m", "torch.distributed.run"]
    assert shown[: len(first)] == first
    assert shown[-3:-1] == ["x.py", "--key"]
    assert "hunter2" not in "".join(shown)


def nested(node: str = "n1", child: str = "0", at: float = 2.0, words: str = "torchrun x.py") -> Event:
    command = tuple(map(Untrusted, words.split()))
    return made_event("nested", node=node, seq=1, at=at, child=child, command=command)


def story_of(*events: Event) -> RunState:
    begun = [made_event("started", node=f"n{rank + 1}", at=1.0, child=str(rank), pid=1) for rank in range(2)]
    return RunState.replay("r", [made_event("generation", node="", at=0.5, number=1), *begun, *events])


def test_the_run_is_stopped_and_the_command_to_type_is_named() -> None:
    """The verdict names the rank, the inner command and what to type; later deaths are no cause."""
    run = story_of(nested(words="torchrun --name a;b x.py"))
    end = decide(run, 2)
    assert end is not None
    assert end.why == "rank 0 on n1 started torchrun"
    run.apply(made_event("deciding", node="", at=2.1, why=end.why, death=end.death))
    run.apply(made_event("exited", node="n1", at=2.2, child="0", code=1))
    given = evidence({0: RankSnapshot(), 1: RankSnapshot()}, per_node=1, run=run)
    (finding, *_) = conclude_run(given, None, was_stopped=False).findings
    assert (finding.code, finding.severity) == ("run-nested-launcher", Severity.BLOCK)
    assert "rank 0 on n1 started a launcher: torchrun --name a;b x.py" in finding.seen
    assert (
        "# let Aboard start this launcher's ranks on all nodes: aboard launch -- torchrun --name 'a;b' x.py"
        in finding.fix
    )
    assert all(line.startswith("# ") for line in finding.fix.splitlines())


def test_a_command_that_no_launcher_has_is_not_offered() -> None:
    """A node may send any words: they are shown, and become no command to type."""
    given = evidence({0: RankSnapshot(), 1: RankSnapshot()}, per_node=1, run=story_of(nested(words="bash -c evil")))
    (finding, *_) = conclude_run(given, None, was_stopped=False).findings
    assert "bash -c evil" in finding.seen
    assert "evil" not in finding.fix


def test_a_world_of_one_rank_goes_on_with_a_note() -> None:
    """One rank's launcher takes nothing from others."""
    run = story_of(nested())
    assert decide(run, 1) is None
    given = evidence({0: RankSnapshot()}, run=run)
    (finding, *_) = conclude_run(given, None, was_stopped=False).findings
    assert (finding.code, finding.severity) == ("run-nested-launcher", Severity.INFO)


@pytest.mark.parametrize(
    "before",
    [
        made_event("phase", node="n1", at=1.5, child="0", phase="group"),
        made_event("listening", node="n1", at=1.5, port=29500),
    ],
)
def test_a_launcher_after_the_ranks_have_met_is_the_users_own(before: Event) -> None:
    """Such as an evaluation that rank 0 starts during training."""
    run = story_of(before, nested(at=60.0))
    assert decide(run, 2) is None


def test_a_scan_that_was_slow_waits_so_that_scans_take_half_a_hundredth_of_a_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scan of 31 ms makes the next one wait for 6.2 s."""
    ticks = iter(range(1_000_000))
    monkeypatch.setattr("aboard.agent.supervisor.resource_usage.time.process_time", lambda: next(ticks) / 32)
    sampler, roots = ResourceSampler(), {"0": os.getpid()}
    scanned = [second for second in range(31) if sampler.find_members(roots, float(second), soon=True) is not None]
    assert scanned == [0, 7, 14, 21, 28]
