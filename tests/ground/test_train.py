"""The examples, as their READMEs have them: one process, and nodes without a shared disk: the same losses."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, STDOUT
from tempfile import TemporaryFile
from typing import Any

import pytest
from deadlines import wait_until
from json_documents import read_document
from launching import PYTHON, Going, Launches, build_sandbox

from aboard.agent import process_tree
from aboard.doctor.host import diagnoses as host
from aboard.sandbox import Sandbox
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.host.processes import PowerLoss

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("torch_c")]

EXAMPLES = Path(__file__).parents[2] / "examples"
CASES = [("finetune", 2), *((name, 4) for name in ("finetune", "chat", "lora", "pretrain"))]
# Minutes on two busy cores, seconds on idle ones.
SECONDS = 600
STEPS = 6
# Threads that spin for each other take minutes where several tests share two cores.
ENV = {"OMP_NUM_THREADS": "1"}
# In the home of the head's user: no other node has it.
PLACE = "job"
# The hosts' own disks, and a part of the weights on each.
PARTS = (
    *("aboard", "train", "--set", f"cluster.python={PYTHON}", "--set", "train.output_dir=apart-halves"),
    *("--set", "train.sharding=full", "--set", "train.eval_steps=null", "--set", "train.save_steps=null"),
)


@pytest.fixture(scope="module")
def four() -> Iterator[Sandbox]:
    """Four nodes with a rank each."""
    with build_sandbox("train", nodes=4, slots=1) as made:
        yield made


@pytest.fixture(scope="module")
def finetuned(four: Sandbox) -> str:
    """The run in which one process trained the first example."""
    _made(four, "finetune")
    _trained(four, "finetune", "alone", "--set", f"cluster.python={PYTHON}")
    return _typed(four, "finetune", "aboard", "status").splitlines()[1].split("\t")[0]


# Each rank imports torch and transformers for seconds: CI compares losses in tests/train, and the quick start trains on
# two nodes.
@pytest.mark.nightly
@pytest.mark.parametrize(("name", "nodes"), CASES)
def test_the_same_losses_on_one_process_and_on_nodes(four: Sandbox, finetuned: str, name: str, nodes: int) -> None:
    """Within 1e-5, step by step; shards and model come to the nodes by themselves, and a model comes out."""
    if name != "finetune":
        _made(four, name)
        _trained(four, name, "alone", "--set", f"cluster.python={PYTHON}")
    out = f"apart-{nodes}"
    apart = _trained(four, name, out, f"n[1-{nodes}]", "--set", f"cluster.python={PYTHON}")
    one, many = _losses(four.head, name, "alone"), _losses(four.nodes[0], name, out)
    assert list(one) == list(many) == list(range(1, STEPS + 1)), apart
    for step, loss in one.items():
        assert many[step] == pytest.approx(loss, rel=1e-5), f"step {step}"
    assert one[STEPS] < one[1]
    assert f"sent to {nodes} nodes" in apart


# Holds rank 1 when the first checkpoint is complete, step by step so that it does not hang, and kills it when the test
# says so: Python imports it at the start of each rank.
KILLER = """
import os, pathlib, signal, threading, time

def hold(*_):
    deadline = time.monotonic() + 20
    # No event tells of a file on a shared disk, here and below.
    while not go.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    if go.exists():
        os.kill(os.getpid(), signal.SIGKILL)
    signal.setitimer(signal.ITIMER_REAL, 0.01)

def watch():
    while not list(saved.glob("*.json")):
        time.sleep(0.002)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

if os.environ.get("RANK") == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    go, saved = pathlib.Path("/shared/killer/go"), pathlib.Path("/shared/recovered/step-000002")
    signal.signal(signal.SIGALRM, hold)
    threading.Thread(target=watch, daemon=True).start()
"""


def test_a_killed_rank_costs_no_sample_and_standbys_take_over(four: Sandbox, finetuned: str) -> None:
    """The training restarts from its newest checkpoint in processes that waited, with the losses of an undisturbed one.

    While they wait, they are no leftovers and no ranks; afterwards nothing is left of any generation.
    """
    put = "mkdir -p /shared/killer && cat > /shared/killer/sitecustomize.py && chmod -R a+rwX /shared/killer"
    assert four.head.run(["sh", "-c", put], input=KILLER).returncode == 0
    launches = Launches(four, folder=f"{_home(four)}/finetune-killed")
    words = ("n[1-2]", "--restarts", "1", "--set", "train.save_steps=2", "--env", "PYTHONPATH=/shared/killer")
    with _trains_until_standbys_wait(four, launches, "/shared/recovered", *words) as (train, run):
        cwd = f"{_home(four)}/finetune"
        check = four.head.run(["aboard", "check", "n[1-2]"], cwd=cwd, env=ENV).stdout
        status = four.head.run(["aboard", "status", run], cwd=cwd, env=ENV).stdout
        four.head.run(["touch", "/shared/killer/go"]).check_returncode()
        assert train.wait(SECONDS) == 0, train.said
        said = train.said
    assert "host-leftover" not in check
    assert host.OTHER_RANKS.code not in check
    assert "2 ranks on 2 nodes" in status, status
    assert "run-killed" in said
    assert "attempt 2: restarting all ranks" in said
    assert re.search(r"resumed from /shared/recovered/step-00000[24]", said)
    starts = [each["data"].get("standby", False) for each in launches.events(run) if each["kind"] == "started"]
    assert starts == [False, False, True, True]
    assert [launches.orphans(name) for name in (run, f"{run}.2", f"{run}.3")] == [{}, {}, {}]
    metrics = [
        json.loads(line) for line in four.head.run(["cat", "/shared/recovered/metrics.jsonl"]).stdout.splitlines()
    ]
    # The ledger of rank 0 covers the first attempt, too, and its classes add up to the wall time.
    spent, wall = metrics[-1]["seconds"], metrics[-1]["wall"]
    assert {"starting", "loading", "detection", "stopping", "waiting", "steps"} <= {k for k in spent if spent[k] > 0}
    assert sum(spent.values()) == pytest.approx(wall, rel=0.01)
    assert 0 < metrics[-1]["goodput"] < 1
    assert re.search(r"^goodput \d+% of .*starting", said, re.MULTILINE), said
    losses = {each["step"]: each["loss"] for each in metrics if "loss" in each}
    one = _losses(four.head, "finetune", "alone")
    assert list(one) == sorted(losses)
    for step, loss in one.items():
        assert losses[step] == pytest.approx(loss, rel=1e-5), f"step {step}"
    # The record has the lines of both attempts, also those that the trainer removed from its own file.
    recorded = [json.loads(line) for line in launches.read(run, "metrics.jsonl").splitlines()]
    logs = [line for line in recorded if "loss" in line.get("figures", {})]
    logged = {(line["generation"], line["step"]): line["figures"]["loss"] for line in logs}
    assert {generation for generation, _ in logged} == {1, 2}
    for step, loss in losses.items():
        assert pytest.approx(loss) in (logged.get((1, step)), logged.get((2, step))), f"step {step}"


@pytest.mark.nightly
def test_the_standby_of_a_spare_takes_over_from_a_lost_node(four: Sandbox, finetuned: str) -> None:
    """At once: the ranks that lost a peer have no grace, and memory is not estimated again for as many ranks."""
    launches = Launches(four, folder=f"{_home(four)}/finetune-lost")
    sets = [
        word
        for each in ("save_steps=2", "max_steps=100000", "num_train_epochs=null")
        for word in ("--set", f"train.{each}")
    ]
    words = ("n[1-3]", "--spares", "1", *sets, "--env", "OMP_NUM_THREADS=1")
    with _trains_until_standbys_wait(four, launches, "/shared/lost", *words, nodes=3) as (train, run):
        with inject_temporarily(four, four.nodes[1], PowerLoss()):
            wait_until(lambda: _count_attempts(launches, run) == 2 or train.ended, SECONDS, lambda: train.said)
            wait_until(lambda: len(_list_starts(launches, run)) == 4 or train.ended, SECONDS, lambda: train.said)
            four.head.run(["aboard", "stop", "--now", run], cwd=f"{_home(four)}/finetune", env=ENV)
            train.wait(SECONDS)
        said = train.said
    assert _list_starts(launches, run) == [("n1", False), ("n2", False), ("n1", True), ("n3", True)], said
    assert len(re.findall(r"^memory ", said, re.MULTILINE)) == 1, said
    at = {each["kind"]: each["at"] for each in launches.events(run)}
    assert at["recovering"] - at["deciding"] < 4, said


def test_a_finished_training_starts_no_ranks_and_another_batch_is_refused(four: Sandbox, finetuned: str) -> None:
    """The same again says where the model is; a checkpoint is not continued with another batch, and no rank starts."""
    typed = ["aboard", "train", "--set", f"cluster.python={PYTHON}", *_sets("alone")]
    again = _typed(four, "finetune", *typed)
    assert "training is already complete; step 6 of 6 is saved in" in again
    assert f"next aboard export {finetuned} --to trained" in again
    batch = [*typed, "--set", "train.max_steps=8", "--set", "train.global_batch_size=4"]
    other = four.head.run(batch, cwd=f"{_home(four)}/finetune", env=ENV, timeout=SECONDS)
    assert other.returncode == 2, other.stdout + other.stderr
    assert "checkpoint-differs" in other.stdout
    assert "phase started" not in again + other.stdout


@pytest.mark.nightly
def test_a_model_comes_out(four: Sandbox, finetuned: str) -> None:
    """What `aboard export` writes is loaded by transformers, and says a token."""
    said = _typed(four, "finetune", "aboard", "export", finetuned, "--to", "made", "--json")
    made = read_document("export", said)
    assert (made["checkpoint"].rpartition("/")[2], made["to"], made["report"]["files"]) == ("step-000006", "made", 1)
    say = (
        "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T\n"
        "m, t = M.from_pretrained('made'), T.from_pretrained('made')\n"
        "print(m.generate(**t('Add', return_tensors='pt'), max_new_tokens=3, do_sample=False).shape[1] > 1)\n"
    )
    assert _typed(four, "finetune", PYTHON, "-c", say).strip().endswith("True")


@pytest.mark.nightly
def test_without_a_shared_disk_export_and_resume_find_every_part(four: Sandbox, finetuned: str) -> None:
    """Two hosts save their halves: the export is that of a shared disk, bit by bit, and any hosts continue.

    The hash of all consumed samples is that of one process in the end; a host that is off is named with its part.
    """
    two = (*PARTS, "--set", "train.max_steps=2", "n[1-2]")
    shared = _typed(four, "finetune", *two, "--set", "train.output_dir=/shared/halves")
    apart = _typed(four, "finetune", *two)
    assert "of step-" not in apart + shared
    for place, said in (("/shared/halves", shared), ("apart-halves", apart)):
        _typed(four, "finetune", "aboard", "export", _run_of(said), "--to", f"made-{place.rpartition('/')[2]}")
    assert "model.safetensors" in _typed(four, "finetune", "ls", "made-halves")
    assert _typed(four, "finetune", "diff", "-r", "made-halves", "made-apart-halves") == ""
    more = (*PARTS, "--set", "train.max_steps=4", "n[1-3]")
    said = _typed(four, "finetune", *more)
    assert "of step-000002 sent to 3 nodes" in said
    with inject_temporarily(four, four.nodes[1], PowerLoss()):
        run = _run_of(said)
        lost = four.head.run(["aboard", "export", run, "--to", "lost"], cwd=f"{_home(four)}/finetune", env=ENV)
        assert lost.returncode != 0
        assert "step-000004 needs rank-00001-000.safetensors, last on n2 (" in lost.stderr, lost.stderr
        assert f"aboard export {run} --checkpoint step-000002 --to lost" in lost.stderr, lost.stderr
    last = _typed(four, "finetune", *PARTS, "--set", "train.max_steps=6", "n4")
    assert "of step-000004 sent to 1 node" in last
    assert _progress(four.nodes[3], "apart-halves") == _progress(four.head, "alone")


def test_a_node_that_lacks_a_package_is_named_before_anything_starts(four: Sandbox) -> None:
    """By the Python that ranks would get there."""
    _made(four, "finetune")
    done = four.head.run(
        ["aboard", "train", "n[1-4]", "--set", "cluster.python=/usr/bin/python3"],
        cwd=f"{_home(four)}/finetune",
        timeout=SECONDS,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert "train-packages" in said, said
    assert "doesn't have torch, transformers" in said, said


# The files of NVIDIA's driver and its nvidia-smi, on a host that has neither: the build of torch there is for CPUs.
GPU_NODE = """
mount -t tmpfs tmpfs /proc/driver
mkdir -p /proc/driver/nvidia/gpus/0000:17:00.0
echo 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Mon' > /proc/driver/nvidia/version
echo 'Model: NVIDIA H100 80GB HBM3' > /proc/driver/nvidia/gpus/0000:17:00.0/information
cat > /usr/local/bin/nvidia-smi <<'END'
#!/bin/sh
case "$1" in
--query-gpu=memory*) echo '81559, 9.0, 81008';;
--query-gpu=index*) echo '0, NVIDIA H100 80GB HBM3, GPU-1, 00000000:17:00.0, 550.163.01, 0';;
esac
END
chmod 755 /usr/local/bin/nvidia-smi
"""


@pytest.mark.parametrize("check", [pytest.param("quick", marks=pytest.mark.nightly), "none"])
def test_a_torch_that_can_not_use_the_gpus_refuses_a_training_once(four: Sandbox, finetuned: str, check: str) -> None:
    """Also without a check: neither a warning beside it, nor ranks that train on the CPUs."""
    hosts = four.nodes[:2]
    try:
        for host in hosts:
            host.run(["sh", "-euc", GPU_NODE], root=True).check_returncode()
        words = ["aboard", "train", "n[1-2]", "--check", check, "--set", f"cluster.python={PYTHON}", *_sets("gpus")]
        done = four.head.run(words, cwd=f"{_home(four)}/finetune", env=ENV, timeout=SECONDS)
    finally:
        for host in hosts:
            host.run(["sh", "-c", "umount /proc/driver; rm -f /usr/local/bin/nvidia-smi"], root=True)
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert re.findall(r"^(.*) gpu-cuda +(.*)$", said, re.MULTILINE) == [("✗", "n1"), ("✗", "n2")], said
    assert len(re.findall("torch .* is a CPU build; the driver 550.163.01 is loaded", said)) == len(hosts), said
    assert "--index-url https://download.pytorch.org/whl/" in said
    assert "phase started" not in said


@contextmanager
def _trains_until_standbys_wait(
    four: Sandbox, launches: Launches, out: str, *words: str, nodes: int = 2
) -> Iterator[tuple[Going, str]]:
    """A training whose standbys wait on this many nodes, and the name of its run."""
    known = launches.newest()
    argv = ["aboard", "train", *_sets(out), "--set", f"cluster.python={PYTHON}", *words]

    def is_waiting() -> bool:
        run = launches.newest()
        # Many tests share two cores; standbys get what others leave.
        for pid in process_tree.find_run_processes(f"{run}.2"):
            with suppress(OSError):
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)
        ready = [each["data"]["nodes"] for each in launches.events(run) if each["kind"] == "standbys"]
        return train.ended or (run != known and bool(ready) and len(ready[-1]) == nodes)

    with TemporaryFile("w+") as output:
        cwd = f"{_home(four)}/finetune"
        process = four.head.popen(argv, cwd=cwd, env=ENV, stdin=DEVNULL, stdout=output, stderr=STDOUT)
        train = Going(process, output)
        try:
            wait_until(is_waiting, SECONDS, lambda: train.said)
            yield train, launches.newest()
        finally:
            process.kill()
            process.wait()


def _count_attempts(launches: Launches, run: str) -> int:
    return sum(each["kind"] == "generation" for each in launches.events(run))


def _list_starts(launches: Launches, run: str) -> list[tuple[str, bool]]:
    """Where ranks started, attempt by attempt, and whether as standbys."""
    starts = [each for each in launches.events(run) if each["kind"] == "started"]
    found = [(each["node"], each["data"].get("standby", False)) for each in starts]
    return [*sorted(found[:2]), *sorted(found[2:])]


def _home(four: Sandbox) -> str:
    return f"{four.head.run(['sh', '-c', 'echo $HOME']).stdout.strip()}/{PLACE}"


def _made(four: Sandbox, name: str) -> None:
    """The example in the head's home, with its data and its model made."""
    where = f"{_home(four)}/{name}"
    if four.head.run(["test", "-d", f"{where}/model"]).returncode == 0:
        return
    for file in ("make_data.py", "make_model.py", "aboard.yaml"):
        text = (EXAMPLES / name / file).read_text("utf-8")
        assert four.head.run(["sh", "-c", f"mkdir -p {where} && cat > {where}/{file}"], input=text).returncode == 0
    for file in ("make_data.py", "make_model.py"):
        made = four.head.run([PYTHON, file], cwd=where, env=ENV, timeout=SECONDS)
        assert made.returncode == 0, made.stderr


def _trained(four: Sandbox, name: str, out: str, *words: str) -> str:
    """A few steps of the example, in float32, evaluated and saved at the end."""
    return _typed(four, name, "aboard", "train", *words, *_sets(out))


def _sets(out: str) -> list[str]:
    sets = [f"train.output_dir={out}", f"train.max_steps={STEPS}", "train.eval_steps=null"]
    return [word for each in sets for word in ("--set", each)]


def _typed(four: Sandbox, name: str, *argv: str) -> str:
    done = four.head.run(argv, cwd=f"{_home(four)}/{name}", env=ENV, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _losses(host: Any, name: str, out: str) -> dict[int, float]:
    """By step, from metrics.jsonl on the node of rank 0; --set's paths start where the command was typed."""
    text = host.run(["sh", "-c", f"cat ~/{PLACE}/{name}/{out}/metrics.jsonl"]).stdout
    lines = [json.loads(line) for line in text.splitlines()]
    return {line["step"]: line["loss"] for line in lines if line.get("loss") is not None}


def _run_of(said: str) -> str:
    """The run's name, from its plain output."""
    return next(line for line in said.splitlines() if line.startswith("run ")).split()[1].rstrip(":")


def _progress(host: Any, out: str) -> Any:
    """The cursor and the hash of consumed samples in the last checkpoint on a host."""
    text = host.run(["sh", "-c", f"cat ~/{PLACE}/finetune/{out}/step-00000{STEPS}/manifest.json"]).stdout
    return json.loads(text)["progress"]
