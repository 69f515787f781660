"""Healthy runs, made here: their logs must not alarm anybody.

`python bench/healthy_logs.py [--quick] [--keep DIR] [--only WORD] [--json FILE]`. Starts small runs of torchrun, the
Trainer of transformers, Accelerate, TRL, DeepSpeed, Slurm in a sandbox (as root) and Ray (if installed), one after the
other. Each must end with exit status 0. `aboard why --log` then has to exit with 0 and show nothing above `info` for
the whole log, and for the log without its last lines: a run that is still going. With --keep, logs that are in DIR are
judged again, not made again. `--quick` makes six of them.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from aboard.sandbox import Sandbox
from figures import Figures

BENCH, BIN = Path(__file__).resolve().parent, Path(sys.executable).parent
EXAMPLES = BENCH.parent / "examples"
SECONDS = 900
# Slow: it compiles, or builds a cluster.
SLOW_SECONDS = 1800
QUICK = 6
# Of the lines of a finished run, those that a run has written that is still going.
CUT = 0.7

_ALARM = re.compile(r"^[✗!] ", re.MULTILINE)
_RANKS = "torchrun --standalone --nproc-per-node 2"
_PROGRAM = BENCH / "healthy_run.py"
HABITS = (
    *(
        "plain",
        "tqdm",
        "warnings",
        "settings",
        "fallbacks",
        "retries",
        "handled",
        "signals",
        "cluster",
        "probe",
        "json",
    ),
    *("colours", "scaler", "samples", "evaluation", "counters", "data", "slow", "python-errors", "quiet", "saving"),
    *("stopping", "table", "closing", "exits", "forgotten", "stdout", "unused", "workers", "pinned"),
)
_TRAINER = (
    "train.py --output_dir output --max_steps 30 --logging_steps 3 --per_device_train_batch_size 2 --save_strategy no"
    " --report_to none --use_cpu"
)
_DPO = (
    f"{_TRAINER.replace('max_steps 30', 'max_steps 9')} --dataset_name pairs.jsonl --model_name_or_path ./model"
    " --bf16 false"
)
_MADE = "python make_data.py; python make_model.py"
_ENGINE = "train.py --deepspeed --deepspeed_config ds_config.json"
_LAUNCH = "accelerate launch --num_machines 1 --num_processes 2"
_AGENT = (
    "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:29511 --rdzv-id 7"
    " train.py --steps 30"
)
_ALONE = "RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29512"
# A name, the example in whose copy it runs, and what is typed.
RUNS: list[tuple[str, str, str]] = [
    *((f"torchrun-{habit}", "torchrun", f"{_RANKS} {_PROGRAM} {habit}") for habit in HABITS),
    (
        "torchrun-debug-info",
        "torchrun",
        f"TORCH_DISTRIBUTED_DEBUG=INFO TORCH_CPP_LOG_LEVEL=INFO {_RANKS} {_PROGRAM} plain",
    ),
    ("torchrun-nccl-info", "torchrun", f"NCCL_DEBUG=INFO TORCH_CPP_LOG_LEVEL=INFO {_RANKS} train.py --steps 30"),
    ("torchrun-python-log", "torchrun", f"LOGLEVEL=INFO {_RANKS} train.py --steps 30"),
    ("torchrun-tee", "torchrun", f"{_RANKS} --tee 3 --log-dir logs --max-restarts 2 {_PROGRAM} json"),
    ("torchrun-two-agents", "torchrun", f"{_AGENT} & {_AGENT}; wait $!"),
    ("python-one-rank", "torchrun", f"{_ALONE} python {_PROGRAM} tqdm"),
    ("trainer", "hf-trainer", f"python {_TRAINER}"),
    ("trainer-ranks", "hf-trainer", f"{_RANKS} {_TRAINER} --disable_tqdm true"),
    ("trainer-debug", "hf-trainer", f"TRANSFORMERS_VERBOSITY=debug {_RANKS} {_TRAINER} --log_level debug"),
    ("trainer-saves", "hf-trainer", f"python {_TRAINER.replace('save_strategy no', 'save_steps 10')}"),
    ("accelerate", "accelerate-fsdp", f"{_LAUNCH} --config_file fsdp.yaml train.py --steps 30"),
    ("accelerate-trainer", "hf-trainer", f"{_LAUNCH} --cpu --mixed_precision no {_TRAINER}"),
    ("accelerate-defaults", "hf-trainer", f"ACCELERATE_LOG_LEVEL=INFO accelerate launch --cpu {_TRAINER}"),
    ("trl-dpo", "trl-dpo", f"{_MADE}; {_RANKS} {_DPO}"),
    ("trl-dpo-adapter", "trl-dpo", f"{_MADE}; python {_DPO} --use_peft --gradient_accumulation_steps 2"),
    ("deepspeed", "deepspeed-zero2", f"DS_ACCELERATOR=cpu deepspeed --num_gpus 2 {_ENGINE}"),
    ("deepspeed-torchrun", "deepspeed-zero2", f"DS_ACCELERATOR=cpu {_RANKS} {_ENGINE} --steps 30"),
    ("ray", "torchrun", f"python {BENCH / 'healthy_ray.py'}"),
]
_NODES = "echo node $SLURM_NODELIST; H=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -1)"
_SRUN = "srun --label torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-id 7 --rdzv-endpoint $H:29500"
_PLAIN = f"{_SRUN} train.py --steps 30"
_SAMPLES = f"{_SRUN} /shared/healthy/healthy_run.py samples"
JOBS = {
    "slurm-torchrun": f"{_NODES}; {_PLAIN}",
    "slurm-set-x": f"set -x; sinfo; {_NODES}; {_PLAIN}; sacct -j $SLURM_JOB_ID || true; squeue",
    "slurm-listings": f"scontrol show nodes; {_NODES}; {_SAMPLES}; scontrol show job $SLURM_JOB_ID",
}


def make_logs(directory: Path, runs: list[tuple[str, str, str]]) -> Iterator[str]:
    """Names of runs that did not end well, after all logs are in `directory`."""
    for name, example, typed in runs:
        log = directory / f"{name}.log"
        if log.exists() or (name == "ray" and importlib.util.find_spec("ray") is None):
            continue
        with tempfile.TemporaryDirectory() as home:
            shutil.copytree(EXAMPLES / example, f"{home}/work")
            env = {**os.environ, "HOME": home, "PATH": f"{BIN}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""}
            env |= {"HF_HUB_OFFLINE": "1", "TORCH_EXTENSIONS_DIR": f"{directory}/extensions"}
            with Path(home, "log").open("wb") as output:
                status = subprocess.run(
                    ["bash", "-ec", typed], cwd=f"{home}/work", env=env, stdin=subprocess.DEVNULL, stdout=output,
                    stderr=subprocess.STDOUT, timeout=SLOW_SECONDS if "deepspeed" in name else SECONDS, check=False,
                ).returncode  # fmt: skip
            print(f"{name}: exit {status}", flush=True)
            shutil.copyfile(f"{home}/log", log if status == 0 else log.with_suffix(".ended-badly"))
            if status != 0:
                yield name


def make_slurm_logs(directory: Path) -> Iterator[str]:
    """The same for jobs of a real Slurm on hosts of a sandbox."""
    if all((directory / f"{name}.log").exists() for name in JOBS) or os.geteuid() != 0:
        return
    with Sandbox.up(f"healthy-{os.getpid()}", nodes=2, slots=1, slurm=True, temporary=True) as box:
        box.head.run(["mkdir", "-p", "/shared/healthy"])
        for file in (*(EXAMPLES / "torchrun").glob("*.py"), _PROGRAM):
            box.head.run(["sh", "-c", f"cat > /shared/healthy/{file.name}"], input=file.read_text("utf-8"))
        for name, typed in JOBS.items():
            script = (
                "#!/bin/bash\n#SBATCH --nodes 2 --ntasks-per-node 1 --chdir /shared/healthy\n"
                f"#SBATCH --output /shared/healthy/{name}\nexport PATH={BIN}:$PATH GLOO_SOCKET_IFNAME=eth0\n{typed}\n"
            )
            done = box.head.run(["sbatch", "--wait"], input=script, timeout=SLOW_SECONDS)
            print(f"{name}: exit {done.returncode}", flush=True)
            text = box.head.run(["cat", f"/shared/healthy/{name}"]).stdout
            (directory / f"{name}.{'log' if done.returncode == 0 else 'ended-badly'}").write_text(text)
            if done.returncode != 0:
                yield name


def judge_text(text: str) -> str:
    """What alarms a reader of the answer to this log, or ""."""
    with tempfile.TemporaryDirectory() as home:
        Path(home, "log.txt").write_text(text, "utf-8")
        answer = subprocess.run(
            [sys.executable, "-m", "aboard", "why", "--log", "log.txt"], cwd=home, stdin=subprocess.DEVNULL,
            env={**os.environ, "HOME": home, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100", "PYTHONUTF8": "1"},
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    alarm = _ALARM.search(answer.stdout)
    if alarm or answer.returncode != 0:
        at = alarm.start() if alarm else 0
        return f"exit {answer.returncode}: {answer.stdout[at : at + 600] or answer.stderr[-600:]}"
    return ""


def measure(figures: Figures, directory: Path, *, quick: bool, only: str) -> None:
    runs = RUNS[:: len(RUNS) // QUICK][:QUICK] if quick else [run for run in RUNS if only in run[0]]
    bad = list(make_logs(directory, runs))
    if not quick and any(only in name for name in JOBS):
        bad += make_slurm_logs(directory)
    logs = [log for log in sorted(directory.glob("*.log")) if only in log.name]
    alarms = 0
    for log in logs:
        text = log.read_text("utf-8", "replace")
        lines = text.splitlines(keepends=True)
        for state, judged in (("finished", text), ("going on", "".join(lines[: int(len(lines) * CUT)]))):
            if judged and (alarm := judge_text(judged)):
                alarms += 1
                print(f"{log.name}, {state}: {alarm}\n", flush=True)
    figures.add("false alarms on healthy runs", alarms, 0, note=f"of {len(logs)}, finished and cut")
    figures.add("runs that did not end well", len(bad), 0, note=" ".join(bad))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="six runs")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the logs here, and use those that are")
    parser.add_argument("--only", default="", metavar="WORD", help="runs whose name contains it")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    options = parser.parse_args()
    measured = Figures("healthy logs")
    with tempfile.TemporaryDirectory() as scratch:
        kept = (options.keep or Path(scratch)).resolve()
        kept.mkdir(parents=True, exist_ok=True)
        measure(measured, kept, quick=options.quick, only=options.only)
    sys.exit(measured.finish(options.json))
