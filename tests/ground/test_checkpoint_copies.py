"""Nodes without a shared disk lose power, and blank spares continue from the newest copied checkpoint."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deadlines import wait_until
from launching import PYTHON, Launches, build_sandbox

from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.host.processes import PowerLoss
from aboard.sandbox.host_setup.system_files import CREW_HOME

pytestmark = [pytest.mark.ground, pytest.mark.nightly, pytest.mark.xdist_group("torch_a")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "finetune"
STEPS = 24
SECONDS = 600
# On each host's own disk.
OUT = f"{CREW_HOME}/copies"
SETS = (
    *(f"cluster.python={PYTHON}", f"train.max_steps={STEPS}", "train.save_steps=2", "train.save_total_limit=1"),
    *("train.eval_steps=null", "train.sharding=full", "train.num_train_epochs=50"),
)


class Training:
    """The finetuning example, on hosts with a rank each and a disk of their own."""

    def __init__(self, launches: Launches) -> None:
        self.launches = launches
        self.box = launches.box
        for file in ("make_data.py", "make_model.py", "aboard.yaml"):
            launches.put(file, (EXAMPLE / file).read_text())
        for file in ("make_data.py", "make_model.py"):
            self.run(PYTHON, file)

    def run(self, *argv: str) -> str:
        env = {"OMP_NUM_THREADS": "1"}
        done = self.box.head.run(argv, cwd=self.launches.folder, env=env, timeout=SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run_on(self, host: Any, *argv: str) -> str:
        done = host.run(argv)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    @staticmethod
    def set(*more: str) -> list[str]:
        return [word for each in (*SETS, *more) for word in ("--set", each)]

    def find_copied(self, host: Any) -> list[str]:
        """The checkpoints of which a host has its copies, the newest last."""
        script = f'grep -l \'"state": "copied"\' {OUT}/step-*/copies.json'
        found = host.run(["sh", "-c", script]).stdout.split()
        return sorted(Path(path).parent.name for path in found)


@pytest.fixture(scope="module")
def training() -> Iterator[Training]:
    with build_sandbox("copies", nodes=3, slots=1) as made:
        yield Training(Launches(made))


def test_a_blank_spare_continues_from_the_newest_copied_checkpoint(training: Training) -> None:
    """The lost node's part comes from its partner, not through the head, and no sample is lost or repeated."""
    nodes, launches = training.box.nodes, training.launches
    words = ("n[1-3]", "--restarts", "2", "--spares", "1", "--env", "OMP_NUM_THREADS=1")
    alone = training.set("train.output_dir=alone", "train.save_steps=null")
    with launches.going("train", *alone) as undisturbed:
        with launches.going("train", *words, *training.set(f"train.output_dir={OUT}")) as going:
            wait_until(lambda: training.find_copied(nodes[0]), SECONDS, lambda: going.said)
            with inject_temporarily(training.box, nodes[1], PowerLoss()):
                newest = training.find_copied(nodes[0])[-1]
                assert going.wait(SECONDS) == 0, going.said
                said = going.said
        assert undisturbed.wait(SECONDS) == 0, undisturbed.said
    assert f"resumed from {OUT}/{newest}" in said, said
    assert re.search(rf"of {newest} sent to 1 node, .* of it by other nodes", said), said
    marker = f"step-{STEPS:06d}/manifest.json"
    disturbed = training.run_on(nodes[2], "cat", f"{OUT}/{marker}")
    assert read_progress(disturbed) == read_progress(training.run("cat", f"alone/{marker}"))
    # Rank 0's node was not lost: its metrics are those of one training, and the spare has a copy.
    steps = [json.loads(line)["step"] for line in training.run_on(nodes[0], "cat", f"{OUT}/metrics.jsonl").splitlines()]
    assert sorted(set(steps)) == list(range(1, STEPS + 1))
    # After the last save, the run waited for its copies.
    for node in (nodes[0], nodes[2]):
        assert training.find_copied(node)[-1] == f"step-{STEPS:06d}"
    assert "checkpoint-not-copied" not in said


def read_progress(marker: str) -> Any:
    """The cursor and the hash of all consumed samples."""
    return json.loads(marker)["progress"]
