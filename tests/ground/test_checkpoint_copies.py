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
MARKER = f"step-{STEPS:06d}/manifest.json"
SECONDS = 600
# Below each host's own home.
OUT = f"{CREW_HOME}/copies"
SETS = (
    *(f"cluster.python={PYTHON}", f"train.max_steps={STEPS}", "train.save_steps=2", "train.save_total_limit=1"),
    *("train.eval_steps=null", "train.num_train_epochs=50"),
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

    def find_copied(self, host: Any, out: str) -> list[str]:
        """The checkpoints of which a host has its copies, the newest last."""
        found = host.run(["sh", "-c", f'grep -l \'"state": "copied"\' {out}/step-*/copies.json']).stdout.split()
        return sorted(Path(path).parent.name for path in found)

    def find_saved(self, host: Any, out: str) -> list[str]:
        found = host.run(["sh", "-c", f"ls {out}/step-*/manifest.json"]).stdout.split()
        return sorted(Path(path).parent.name for path in found)

    def export(self, run: str, to: str) -> str:
        """The hash of the exported weights, which are equal bit by bit."""
        self.run("aboard", "export", run, "--to", to)
        return self.run("sh", "-c", f"cat {to}/*.safetensors | sha256sum")


@pytest.fixture(scope="module")
def training() -> Iterator[Training]:
    with build_sandbox("copies", nodes=3, slots=2) as made:
        yield Training(Launches(made))


@pytest.fixture(scope="module")
def undisturbed(training: Training) -> Any:
    """The progress of a training on the head, to which samples are the same whatever the layout."""
    training.run("aboard", "train", *training.set("train.output_dir=alone", "train.save_steps=null"))
    return read_progress(training.run("cat", f"alone/{MARKER}"))


@pytest.mark.parametrize(
    ("name", "ranks", "lost", "sets"),
    [
        ("full", 1, 1, ["train.sharding=full"]),
        ("lora", 1, 1, ["train.sharding=full", "train.adapter.type=lora", "train.adapter.r=16"]),
        ("hybrid", 2, 0, ["train.sharding=hybrid"]),
    ],
)
def test_a_blank_spare_continues_from_the_newest_copied_checkpoint(
    training: Training, undisturbed: Any, name: str, ranks: int, lost: int, sets: list[str]
) -> None:
    """The lost node's part comes from its partner, not through the head, and no sample is lost or repeated.

    In the end one node has, with its copies, all that an export needs.
    """
    nodes, launches, out = training.box.nodes, training.launches, f"{OUT}-{name}"
    partner = nodes[1 - lost]
    words = ("n[1-3]", "--ranks", str(ranks), "--restarts", "2", "--spares", "1", "--env", "OMP_NUM_THREADS=1")
    with launches.going("train", *words, *training.set(*sets, f"train.output_dir={out}")) as going:
        wait_until(lambda: going.ended or training.find_copied(partner, out), SECONDS, lambda: going.said)
        assert not going.ended, going.said
        run = launches.newest()
        with inject_temporarily(training.box, nodes[lost], PowerLoss()):
            copied = training.find_copied(partner, out)[-1]
            # Each replica of hybrid sharding has everything.
            newest = training.find_saved(partner, out)[-1] if name == "hybrid" else copied
            assert going.wait(SECONDS) == 0, going.said
            said = going.said
    assert f"resumed from {out}/{newest}" in said, said
    assert re.search(rf"of {newest} sent to 1 node, .* of it by other nodes", said), said
    assert read_progress(training.run_on(nodes[2], "cat", f"{out}/{MARKER}")) == undisturbed
    # The metrics are those of one training; if rank 0's node was lost, up to the last copied checkpoint, and the rest.
    first = nodes[0] if lost else nodes[2]
    steps = {json.loads(line)["step"] for line in training.run_on(first, "cat", f"{out}/metrics.jsonl").splitlines()}
    kept, resumed = (int(each.removeprefix("step-")) for each in (newest if lost else copied, newest))
    assert steps >= {*range(1, kept + 1), *range(resumed + 1, STEPS + 1)}
    # After the last save, the run waited for its copies.
    for node in [partner] if name == "hybrid" else [partner, nodes[2]]:
        assert training.find_copied(node, out)[-1] == f"step-{STEPS:06d}"
    assert "checkpoint-not-copied" not in said
    exported = training.export(run, f"{name}-from-both")
    with inject_temporarily(training.box, partner, PowerLoss()):
        assert training.export(run, f"{name}-from-one") == exported


def read_progress(marker: str) -> Any:
    """The cursor and the hash of all consumed samples."""
    return json.loads(marker)["progress"]
