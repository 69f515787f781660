"""A small DDP training that ends well, in the words of one of many programs: `torchrun … healthy_run.py HABIT`."""

import json
import logging
import os
import random
import signal
import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm  # type: ignore[import-untyped]

STEPS = 60
LINES = [
    "def test_error(self): raise ValueError('fatal error: %s' % reason)",
    "Traceback (most recent call last): is how Python begins its stack traces.",
    "The captain shouted: abort! Nobody was killed, and the watchdog slept.",
    "Segmentation fault is what geologists never say; RuntimeError neither.",
]


def start(log: logging.Logger) -> None:  # noqa: C901 - one habit after the other
    """What a program says before its first step, by habit."""
    habit, rank = sys.argv[1], dist.get_rank()
    if habit == "warnings":
        warnings.warn("lr_scheduler.step() before optimizer.step() is deprecated and will fail", stacklevel=1)
        warnings.warn("error_bad_lines is deprecated; invalid rows raise an error", FutureWarning, stacklevel=1)
    elif habit == "settings":
        print(json.dumps({"on_error": "raise", "error_file": None, "nccl_timeout": 1800, "fail_fast": True}, indent=1))
        print(f"[rank {rank}] max_failures=3, kill_on_timeout=False, abort_on_nan=True, crash_dir=/tmp/crash")
    elif habit == "fallbacks":
        for package in ("flash_attn", "apex", "xformers", "triton"):
            try:
                __import__(f"{package}_not_here")
            except ImportError as error:
                print(f"{error}: {package} is not available, falling back to the PyTorch implementation")
        log.error("could not import wandb; metrics are written to metrics.json only")
    elif habit == "retries":
        for attempt in (1, 2):
            print(
                f"download of vocab.json failed (attempt {attempt} of 3): Connection reset by peer; retrying",
                flush=True,
            )
            time.sleep(0.1)
        print("download of vocab.json: ok")
    elif habit == "handled":
        try:
            torch.load("latest.pt")
        except FileNotFoundError:
            log.exception("no checkpoint to resume from: starting at step 0")
    elif habit == "signals":
        signal.signal(signal.SIGTERM, lambda *_: print("SIGTERM received: saving, then exit"))
        print("handlers installed for SIGTERM, SIGUSR1, SIGINT; on SIGTERM the run saves and is killed after 30 s")
    elif habit == "cluster":
        # A list of all nodes of a cluster, as sites print it for their users.
        print("PARTITION AVAIL NODES STATE NODELIST\ngpu up 3 down* gpu[17-19]\ngpu up 61 alloc gpu[01-16,20-64]")
    elif habit == "probe":
        print("checking ports: 29500 in use, 29501 in use, 29502 free", flush=True)
        log.warning("NCCL is not available on this machine: backend gloo")


def report(log: logging.Logger, step: int, loss: float, speed: float) -> None:  # noqa: C901, PLR0912 - as above
    """What a program says at a step, by habit."""
    habit, rank = sys.argv[1], dist.get_rank()
    if habit == "tqdm":
        return
    if habit == "json":
        print(
            json.dumps({"step": step, "loss": loss, "errors": 0, "failed_batches": 0, "error_rate": 0.5 / step}),
            flush=True,
        )
    elif habit == "colours":
        print(f"\x1b[32mINFO\x1b[0m \x1b[1mstep {step}\x1b[0m loss \x1b[31m{loss:.4f}\x1b[0m", flush=True)
    elif habit == "scaler":
        print(f"iteration {step}/{STEPS} | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {1 / step:.3f} | "
              "number of skipped iterations:   0 | number of nan iterations:   0 |", flush=True)  # fmt: skip
        if step % 20 == 0:
            print(f"[deepspeed] OVERFLOW! Rank {rank} Skipping step. Attempted loss scale: 65536, reducing to 32768")
    elif habit == "samples" and step % 6 == 0:
        print(f"step {step} sample: {LINES[step // 6 % len(LINES)]}", flush=True)
    elif habit == "evaluation" and step % 20 == 0:
        print(
            f"eval at step {step}: word error rate 0.{90 - step}, false alarms 3, missing 2, failures 0 of 120",
            flush=True,
        )
    elif habit == "counters":
        print(
            f"step={step} loss={loss:.3f} io_errors=0 ecc_errors=0 retries={step // 30} timeouts=0 fatal=0", flush=True
        )
    elif habit == "data" and step % 15 == 0:
        log.warning("skipping corrupt sample %s: invalid JSON (1 error, 0 failed shards)", step)
        print(f"step {step} loss {loss:.4f}", flush=True)
    elif habit == "slow" and step % 15 == 0:
        log.warning("step %s took %.1f times the median; dataloader is slow", step, 2.5)
        print(f"step {step} loss {loss:.4f}", flush=True)
    elif habit == "python-errors" and step % 15 == 0:
        log.error("metrics server did not answer (timed out after 2 s); %s points are kept for later", step)
        print(f"step {step} loss {loss:.4f}", flush=True)
    elif habit == "quiet":
        if step == STEPS:
            print(f"final loss {loss:.4f}")
    else:
        log.info("epoch 1 step %s loss %.4f, %.0f samples/s", step, loss, speed)


def finish(log: logging.Logger, model: nn.Module) -> None:
    habit, rank = sys.argv[1], dist.get_rank()
    if habit == "saving" and rank == 0:
        torch.save(model.state_dict(), "model.pt")
        print("saved model.pt (errors: none, failed shards: 0); removed 2 old checkpoints")
    elif habit == "stopping":
        log.info("early stopping: no improvement in 5 evaluations, aborting the search; best loss %.3f", 0.1)
    elif habit == "table":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            model(torch.randn(4, 8))
        print(profile.key_averages().table(row_limit=5))
    elif habit == "closing":
        print("job finished: status=COMPLETED exit_code=0 errors=0 failed_ranks=[] killed=0")
    elif habit == "exits":
        sys.stdout.flush()
        os._exit(0)


def main() -> None:
    habit = sys.argv[1]
    logging.basicConfig(
        level=logging.INFO, stream=sys.stdout if habit == "stdout" else sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )  # fmt: skip
    log = logging.getLogger("train")
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    random.seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1), find_unused_parameters=habit == "unused")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rows = torch.randn(STEPS * 4, 8)
    workers = 2 if habit == "workers" else 0
    loader = DataLoader(
        TensorDataset(rows, rows.sum(1)), batch_size=4, num_workers=workers, pin_memory=habit == "pinned"
    )
    start(log)
    if habit == "tqdm":
        loader = tqdm(loader, desc="Training", disable=dist.get_rank() != 0)
    began = time.monotonic()
    for step, (inputs, targets) in enumerate(loader, 1):
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(inputs).squeeze(1), targets)
        loss.backward()
        optimizer.step()
        report(log, step, loss.item(), 4 * step / (time.monotonic() - began))
    finish(log, model)
    if habit != "forgotten":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
