"""What `recover:` in aboard.yaml, `--restarts`, `--spares` and `--min-nodes` ask for, and what is refused."""

from pathlib import Path

import pytest
from typed_commands import aboard

from aboard.config.config_loader import build_recovery_request, load_config_files
from aboard.core.run.recovery.recovery_policy import RecoverySettings, StallAction
from aboard.core.run.recovery.recovery_request import RecoveryRequest, parse_spares, resolve_recovery
from aboard.diagnoses import InputError

NODES = ("n1", "n2", "n3", "n4")
FILE = """
cluster: {nodes: "n[1-4]"}
recover: {restarts: 3, spares: 2, min_nodes: 1, wait: 90s, standby: false}
"""


@pytest.mark.parametrize(
    ("restarts", "spares", "default", "expected"),
    [
        (None, None, 0, (0, ())),
        (None, None, 10, (10, ())),
        (3, None, 10, (3, ())),
        (None, "1", 0, (1, ("n4",))),
        (None, "1", 10, (10, ("n4",))),
        (5, "n2,n1", 0, (5, ("n2", "n1"))),
        (None, "n[2-3]", 0, (2, ("n2", "n3"))),
        (0, "2", 10, (0, ("n3", "n4"))),
        (None, "0", 10, (10, ())),
    ],
)
def test_spares_are_the_last_nodes_or_named_ones_and_imply_restarts(
    restarts: int | None, spares: str | None, default: int, expected: tuple[int, tuple[str, ...]]
) -> None:
    """The default of the command holds where nothing is said."""
    request = RecoveryRequest(restarts=restarts, spares=None if spares is None else parse_spares(spares))
    got = resolve_recovery(request, NODES, restarts=default)
    assert (got.restarts, got.spares) == expected


@pytest.mark.parametrize(
    ("restarts", "asked", "default", "expected"),
    [
        (3, None, StallAction.RESTART, StallAction.RESTART),
        (0, None, StallAction.RESTART, StallAction.REPORT),
        (3, None, StallAction.REPORT, StallAction.REPORT),
        (3, StallAction.RESTART, StallAction.REPORT, StallAction.RESTART),
        (0, StallAction.STOP, StallAction.RESTART, StallAction.STOP),
    ],
)
def test_a_stuck_run_is_restarted_only_where_there_are_restarts(
    restarts: int, asked: StallAction | None, default: StallAction, expected: StallAction
) -> None:
    """A training restarts by default."""
    request = RecoveryRequest(restarts=restarts, on_stall=asked)
    assert resolve_recovery(request, NODES, restarts=10, on_stall=default).on_stall is expected


def test_a_restart_of_a_stuck_run_without_restarts_is_a_mistake() -> None:
    """It is named before a node is contacted."""
    ran = aboard("launch", "--on-stall", "restart", "--dry-run", "n[1-2]", "--", "python", "-c", "1")
    assert ran.code == 3
    assert "restart needs --restarts" in ran.stderr


@pytest.mark.parametrize(("spares", "seen"), [("n9", "n9 is not a node"), ("4", "no node would be left")])
def test_spares_that_can_not_be_are_refused(spares: str, seen: str) -> None:
    """A name that is no node, and as many as there are nodes."""
    with pytest.raises(InputError, match=seen):
        resolve_recovery(RecoveryRequest(spares=parse_spares(spares)), NODES, restarts=10)


@pytest.mark.parametrize(
    ("least", "refusal", "seen"),
    [
        (1, "launch", "a script can't be told"),
        (1, "batch", "train.global_batch_size is not set"),
        (4, "", "it is 4, but ranks start on 3 nodes"),
    ],
)
def test_a_smaller_world_that_can_not_be_is_refused_before_the_start(least: int, refusal: str, seen: str) -> None:
    """Only a training with a global batch can get smaller, and not larger than it is."""
    with pytest.raises(InputError, match=seen) as raised:
        resolve_recovery(RecoveryRequest(min_nodes=least, spares=1), NODES, restarts=10, min_nodes_refusal=refusal)
    assert raised.value.code == "launch-min-nodes"


def test_the_file_asks_and_options_override_it(tmp_path: Path) -> None:
    """Each setting has one place, which messages name."""
    file = tmp_path / "aboard.yaml"
    file.write_text(FILE)
    asked = build_recovery_request(load_config_files([str(file)]))
    assert resolve_recovery(asked, NODES, restarts=10) == RecoverySettings(
        restarts=3, spares=("n3", "n4"), min_nodes=1, wait=90.0, standby=False
    )
    typed = RecoveryRequest(restarts=0, spares=("n9",), places={"spares": "--spares n9"})
    with pytest.raises(InputError) as raised:
        resolve_recovery(asked.override(typed), NODES, restarts=10)
    assert raised.value.problems[0].where == "--spares n9"
    with pytest.raises(InputError) as raised:
        resolve_recovery(asked, NODES[:2], restarts=10)
    assert raised.value.problems[0].where == f"recover.spares ({file}:3:32)"


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("wait: 10", "recover.wait: '10' is not a duration"),
        ("wait: soon", "recover.wait: 'soon' is not a duration"),
        ("spares: true", "recover.spares must be a whole number, not true"),
        ("spares: [1]", "recover.spares[0] must be text, not 1"),
        ("spares: -1", "recover.spares is -1"),
        ("min_nodes: 0", "recover.min_nodes is 0"),
        ("standby: soon", "recover.standby must be true or false"),
        ("attempts: 3", "unknown key 'attempts' in recover"),
    ],
)
def test_values_that_mean_nothing_are_refused(tmp_path: Path, line: str, seen: str) -> None:
    """At their position in the file."""
    file = tmp_path / "aboard.yaml"
    file.write_text(f"recover:\n  {line}\n")
    with pytest.raises(InputError) as raised:
        load_config_files([str(file)])
    assert seen in raised.value.problems[0].seen
    assert raised.value.problems[0].where.startswith(f"{file}:2:")


def test_a_launch_reads_the_file_and_refuses_what_it_can_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any node is contacted."""
    monkeypatch.chdir(tmp_path)
    Path("aboard.yaml").write_text(FILE)
    Path("train.py").touch()
    ran = aboard("launch", "--dry-run", "--", "train.py")
    assert ran.code == 3
    assert "recover.min_nodes (aboard.yaml:3:" in ran.stderr
    assert "a script can't be told to continue on fewer nodes" in ran.stderr
    Path("aboard.yaml").write_text(FILE.replace("spares: 2, min_nodes: 1", "spares: 4"))
    assert "no node would be left for ranks" in aboard("launch", "--dry-run", "--", "train.py").stderr


def test_a_training_without_a_global_batch_can_not_get_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step would have fewer samples, and the losses would differ."""
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("data.jsonl").touch()
    Path("aboard.yaml").write_text("train: {model: ./model}\ndata: {files: data.jsonl}\n")
    ran = aboard("train", "aboard.yaml", "--dry-run", "--min-nodes", "1")
    assert ran.code == 3
    assert "train.global_batch_size is not set" in ran.stderr


@pytest.mark.parametrize(
    "pasted",
    ["torchrun --nnodes 1:4 --nproc-per-node 1 x.py", "deepspeed --elastic_training x.py"],
)
def test_an_elastic_launch_is_refused_with_the_option_that_replaces_nodes(pasted: str) -> None:
    """A script never runs on fewer nodes than it was started on; a spare is what helps it."""
    ran = aboard("launch", "n[1-4]", "--dry-run", "--", *pasted.split())
    assert ran.code == 3
    assert "--spares 1" in ran.stderr
