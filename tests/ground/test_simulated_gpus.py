"""GPU nodes, simulated: what a check says of them, scripts on them, and a spare that takes over in a training."""

import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from deadlines import wait_until
from gpu_hosts import PLACE, list_variables, make_gpu_hosts
from launching import PYTHON, Launches, Ran, build_sandbox

pytestmark = [pytest.mark.ground, pytest.mark.nightly, pytest.mark.xdist_group("torch_c")]

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 480
DDP = """
import os
import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1, device="cuda"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.full((4, 8), 1.0 + dist.get_rank(), device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.all_reduce(loss)
seen = [os.environ[name] for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")]
with open(f"seen-{dist.get_rank()}", "w") as file:
    print(*seen, torch.cuda.device_count(), f"{loss.item():.6f}", file=file)
dist.destroy_process_group()
"""
# TRL's own defaults: bf16, gradient checkpointing, and the loss of completions only.
SFT = """
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="output", max_steps=30, logging_steps=5, per_device_train_batch_size=4, learning_rate=1e-3,
    save_strategy="no", report_to="none",
)
trainer = SFTTrainer(
    AutoModelForCausalLM.from_pretrained("model"),
    args=args,
    train_dataset=load_dataset("json", data_files="pairs.jsonl", split="train").rename_column("chosen", "completion"),
    processing_class=AutoTokenizer.from_pretrained("model"),
)
trainer.train()
losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
print(f"{trainer.model.device.type} losses {losses}", flush=True)
print(f"done: rank {args.process_index} of world size {args.world_size}", flush=True)
"""


# Part of the sitecustomize of ranks: the first rank of n2 trains no further once there is a checkpoint, in the first
# attempt, until its node loses power.
HOLD = """
import os, pathlib, signal, threading, time

def hold(*_):
    # No event tells of a node that loses power.
    time.sleep(60)

def watch():
    while not list(pathlib.Path("/shared/finetune/killed/step-000002").glob("*.json")):
        time.sleep(0.002)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

if os.environ.get("RANK") == "2" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ.get("HOLDS"):
    signal.signal(signal.SIGALRM, hold)
    threading.Thread(target=watch, daemon=True).start()
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Launches]:
    """Three GPU nodes with two slots each; the third is a spare."""
    with build_sandbox("simulated", nodes=3, slots=2) as box:
        made = Launches(box, slots=2)
        make_gpu_hosts(box.nodes)
        startup = f"{PLACE}/startup/sitecustomize.py"
        box.head.run(["sh", "-c", f"cat >> {startup}"], input=HOLD).check_returncode()
        made.put("aboard.yaml", json.dumps(_configure()))
        yield made


def test_a_script_gets_the_gpus_of_its_slots(hosts: Launches) -> None:
    """By their numbers on the bus; the script trains on them over its own process group, as on any cluster."""
    hosts.put("ddp.py", DDP)
    done = hosts.aboard("launch", "--include", "n1:1@n2:0", "--", sys.executable, "ddp.py", timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (one, loss), (other, same) = (
        hosts.box.head.run(["cat", f"{hosts.folder}/seen-{rank}"]).stdout.rsplit(maxsplit=1) for rank in (0, 1)
    )
    assert (one, other) == ("1 PCI_BUS_ID 1", "0 PCI_BUS_ID 1")
    assert loss == same


def test_healthy_gpu_nodes_pass_the_whole_check(hosts: Launches) -> None:
    """Every subject is fine, or says why it was not tested; the collective uses all GPUs and the backend of GPUs."""
    shown = hosts.aboard("check", timeout=240)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    lines = shown.stdout.splitlines()
    # Four devices compute on the cores of one machine, beside other tests: their rates differ, and mean nothing.
    codes = {line.split()[1] for line in lines if re.match(r"(block|warn|info) ", line)} - {"compute-slow"}
    assert codes == {"unknown-kernel-log"}, shown.stdout
    subjects = {name: line.split()[0] for line in lines if (name := line.split()[1].rstrip(":")) and _is_verdict(line)}
    subjects.setdefault("compute", "fine")
    fine = ("reach", "host", "network", "gpu", "compute", "software", "storage", "collective")
    assert subjects == {**dict.fromkeys(fine, "fine"), "fabric": "untested"}, shown.stdout
    assert "collective: 4 ranks on 2 nodes, nccl, torch 2" in shown.stdout
    measured = re.findall(
        r"^compute (n\d GPU \d): multiply .*, copy .*, to device .*, from device ", shown.stdout, re.MULTILINE
    )
    assert measured == ["n1 GPU 0", "n1 GPU 1", "n2 GPU 0", "n2 GPU 1"]


def test_the_trainer_of_transformers_runs_on_gpus(hosts: Launches) -> None:
    """The script of examples/hf-trainer, in bf16 over DDP; its loss falls."""
    said = _run(hosts, "hf-trainer", without=("--use_cpu",), options=("--bf16",))
    losses = [float(loss) for loss in re.findall(r"'loss': '([\d.]+)'", said[0])]
    # 100 steps, of which ten are a line; letters at random would be log(26) = 3.3.
    assert len(losses) == 10
    assert losses[0] > 3
    assert losses[-1] < 2.2
    means = {text for rank in said for text in re.findall(r"train loss ([\d.]+)", rank)}
    assert len(means) == 1


def test_accelerate_shards_a_model_over_gpus(hosts: Launches) -> None:
    """The script of examples/accelerate-fsdp: all ranks have the same losses, which fall, and a part of the head."""
    said = _run(hosts, "accelerate-fsdp")
    losses = [re.findall(r"step \d+ loss ([\d.]+)", text) for text in said]
    assert losses == [losses[0]] * 4
    assert float(losses[0][0]) > 3
    assert float(losses[0][-1]) < 1.5
    assert all("FSDPLlamaDecoderLayer; of the head 1024 of 4096" in text for text in said)


def test_trl_trains_on_gpus(hosts: Launches) -> None:
    """A script of SFTTrainer under `accelerate launch`, with the model and the data of examples/trl-dpo."""
    said = _run(hosts, "trl-dpo", script=SFT)
    losses = [json.loads(text) for rank in said for text in re.findall(r"^cuda losses (.*)$", rank, re.MULTILINE)]
    assert losses == [losses[0]] * 4
    assert losses[0] == sorted(losses[0], reverse=True)
    # The base model answers in two styles, of which one is in the data.
    assert losses[0][0] > 5 * losses[0][-1]


def test_a_spare_with_gpus_takes_the_place_of_a_lost_node(hosts: Launches) -> None:
    """The training run loses power on one node, and ends on the GPUs of the spare after one restart."""
    launches = Launches(hosts.box, slots=2, folder="/shared/finetune")
    _copy_example(launches, "finetune", prepare=("make_data.py", "make_model.py"))
    example = (EXAMPLES / "finetune/aboard.yaml").read_text()
    cluster = {**_configure()["cluster"], "nodes": ["n[1-3] slots=2"]}
    launches.put("aboard.yaml", example + f"cluster: {json.dumps(cluster)}\n")
    sets = ("train.max_steps=6", "train.save_steps=2", "train.eval_steps=null")
    usual = ("train", *(word for each in sets for word in ("--set", each)))
    words = (*usual, "--spares", "1", "--set", "train.output_dir=killed", "--env", "HOLDS=1")
    with launches.going(*words) as train:
        saved = ["sh", "-c", f"ls {launches.folder}/killed/step-000002/*.json"]
        found = lambda: train.ended or launches.box.head.run(saved).returncode == 0  # noqa: E731 - used once
        wait_until(found, SECONDS, lambda: train.said)
        hosts.box.host("n2").kill_power()
        assert train.wait(SECONDS) == 0, train.said
        said = train.said
    assert "n3 takes over" in said
    assert re.search(r"^done: finished: 4 ranks, .* with 1 restart, 6 steps, loss ", said, re.MULTILINE), said


def _configure() -> dict[str, Any]:
    variables = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "SIMULATED_GPUS_WAITS": f"{PLACE}/waits"}
    env = {**list_variables(), **variables}
    return {"cluster": {"python": PYTHON, "nodes": ["n[1-2] slots=2"], "env": env}}


def _is_verdict(line: str) -> bool:
    return line.startswith(("fine ", "untested "))


def _copy_example(launches: Launches, example: str, *, prepare: Sequence[str] = ()) -> None:
    for file in (EXAMPLES / example).iterdir():
        launches.put(file.name, file.read_text())
    launches.put("aboard.yaml", json.dumps(_configure()))
    for script in prepare:
        made = launches.box.head.run([PYTHON, script], cwd=launches.folder, timeout=SECONDS)
        assert made.returncode == 0, made.stderr


def _run(
    hosts: Launches, example: str, *, without: Sequence[str] = (), options: Sequence[str] = (), script: str = ""
) -> list[str]:
    """What each rank of the example printed, by the line of its README for GPUs; `script` is another one."""
    launches = Launches(hosts.box, slots=2, folder=f"/shared/{example}")
    _copy_example(launches, example, prepare=("make_data.py", "make_model.py") if script else ())
    (line,) = re.findall(r"^    aboard launch (.*)$", (EXAMPLES / example / "README.md").read_text(), re.MULTILINE)
    words = [word for word in shlex.split(line.replace("--hostfile ../hostfile", "")) if word not in without]
    if script:
        launches.put("train.py", script)
        words = words[: words.index("train.py") + 1]
    waits = f"{PLACE}/waits"
    hosts.box.head.run(["rm", "-f", waits]).check_returncode()
    ran = launches.launch(*words, *options, timeout=SECONDS)
    assert ran.code == 0, ran.said
    assert ran.findings == []
    assert launches.orphans(ran.run) == {}
    # Each rank has waited for its device.
    lines = hosts.box.head.run(["cat", waits]).stdout.splitlines()
    assert {json.loads(each)["rank"] for each in lines} == {"0", "1", "2", "3"}
    said = _printed(ran)
    for rank, text in enumerate(said):
        assert f"done: rank {rank} of world size 4" in text
    return said


def _printed(ran: Ran) -> list[str]:
    lines = ran.launches.aboard("logs", ran.run, "--no-fold", "-n", "all").stdout
    found = re.findall(r"^\S+ \[rank (\d+)\] (.*)$", lines, re.MULTILINE)
    return ["\n".join(text for rank, text in found if int(rank) == wanted) for wanted in range(4)]
