"""Trainers that take turns on one machine: all others are stopped (SIGSTOP) while one runs.

Restarting each one for every repetition would take an hour; this way repetitions are interleaved, and a slower machine
affects all of them alike.
"""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from time import monotonic, sleep

import numpy as np

from aboard.core.plan.training_settings import DataPart, Training
from aboard.trainer.data.intake.read_chunk import detect_format
from aboard.trainer.data.intake.source_chunks import SourceSpec, list_source_chunks
from aboard.trainer.data.tokenize_workers.prepare_data import PreparationSource, prepare_data
from aboard.trainer.data.tokens.encoder import Encoder
from data_corpus import make_tokenizer

PEERS = Path(__file__).with_name("train_peers")
CONTENDERS = {
    "ours": ("ours.py",),
    "bare": ("bare.py",),
    "HF Trainer": ("hf_trainer.py", "hf"),
    "Accelerate": ("accelerate_loop.py",),
    "TRL": ("hf_trainer.py", "trl"),
    "DeepSpeed": ("zero.py",),
}
# Recorded steps: more than a turn has.
_STAMPS = 512
_START = 420.0
_TURN = 180.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """The shape of a Llama model, and the row length in tokens."""

    hidden: int
    layers: int
    length: int
    batch: int
    vocabulary: int = 16_384


@dataclass(frozen=True, kw_only=True)
class Task:
    """The input of all trainers."""

    folder: Path
    size: Size
    training: Training

    @property
    def tokens(self) -> int:
        """Tokens of one rank in one step."""
        return self.size.batch * self.size.length


def prepare_task(folder: Path, size: Size, rows: int = 256) -> Task:
    """Creates a model with random weights and rows of random tokens, as an array and as prepared data."""
    import torch  # noqa: PLC0415 - seconds that --help need not take
    from transformers import AutoModelForCausalLM, LlamaConfig  # noqa: PLC0415 - as above

    make_tokenizer(folder / "tokenizer", 1000)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.hidden * 11 // 4,
        num_hidden_layers=size.layers,
        num_attention_heads=max(1, size.hidden // 64),
        max_position_embeddings=size.length,
        tie_word_embeddings=False,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    # Within the tokenizer's range: our preparation rejects unknown tokens.
    ids = np.random.default_rng(0).integers(4, 900, (rows, size.length))
    np.save(folder / "rows.npy", ids)
    (folder / "rows.jsonl").write_text("".join(json.dumps({"input_ids": row.tolist()}) + "\n" for row in ids))
    chunks = list_source_chunks(SourceSpec(path=str(folder / "rows.jsonl")))
    source = PreparationSource(form=detect_format(chunks), chunks=tuple(chunks))
    made = prepare_data(
        [source], Encoder(str(folder / "tokenizer")), folder / "cache", max_length=size.length, workers=1
    )
    part = DataPart(name="rows", shards=str(made.shards.folder), bins=str(made.bins.folder))
    training = Training(
        model=str(folder / "model"),
        data=(part,),
        output_dir=str(folder / "out"),
        max_length=size.length,
        max_steps=1_000_000,
        per_device_train_batch_size=size.batch,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        bf16=False,
        attn_implementation="sdpa",
        logging_steps=10,
        resume="none",
    )
    return Task(folder=folder, size=size, training=training)


class Contender:
    """The ranks of one trainer, stopped except during its turns."""

    def __init__(self, name: str, task: Task, *, world: int, layout: str) -> None:
        self.name = name
        self._folder = Path(tempfile.mkdtemp(dir=task.folder))
        self._clock = self._folder / "clock"
        self._clock.write_bytes(bytes(8 * (_STAMPS + 1)))
        settings = {**asdict(task.training), "sharding": layout, "output_dir": str(self._folder / "out")}
        shared = {
            **os.environ,
            "BENCH_FOLDER": str(task.folder),
            "BENCH_BATCH": str(task.size.batch),
            "BENCH_LAYOUT": layout,
            "BENCH_ADAPTER": json.dumps(settings["adapter"]) if task.training.adapter else "",
            "BENCH_CLOCK": str(self._clock),
            "ABOARD_TRAINING": json.dumps(settings),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_find_free_port()),
            # Each rank has its own cores, as from a launcher.
            "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // world)),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "DS_ACCELERATOR": "cpu",
            "ACCELERATE_USE_CPU": "true",
            "PYTHONPATH": os.pathsep.join([str(PEERS), *filter(None, sys.path)]),
        }
        script, *words = CONTENDERS[name]
        self._log = (self._folder / "log").open("w+b")
        self._ranks = [
            subprocess.Popen(
                [sys.executable, str(PEERS / script), *words],
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                cwd=self._folder,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
                preexec_fn=_die_with_bench,  # noqa: PLW1509 - it calls prctl, which takes no lock
            )
            for rank in range(world)
        ]

    def turn(self, steps: int, within: float = _TURN) -> list[float]:
        """Seconds of each of so many whole steps; one more at each end is left out, for it may have been cut."""
        self._signal(signal.SIGCONT)
        try:
            start = self._steps()
            deadline = monotonic() + within
            while self._steps() < start + steps + 1:
                self._judge(deadline)
                sleep(0.005)
        finally:
            self._signal(signal.SIGSTOP)
        stamps = np.frombuffer(self._clock.read_bytes(), "<u8")
        places = [1 + (start + at) % _STAMPS for at in range(1, steps + 2)]
        return [float(each) / 1e9 for each in np.diff(stamps[places].astype(np.int64))]

    def first(self, within: float) -> None:
        """Waits until its first step is done."""
        deadline = monotonic() + within
        while self._steps() < 1:
            self._judge(deadline)
            sleep(0.005)

    def memory(self) -> float:
        """Peak memory of the largest rank, in bytes."""
        found = 0
        for rank in self._ranks:
            words = Path(f"/proc/{rank.pid}/status").read_text()
            found = max(found, next(int(line.split()[1]) for line in words.splitlines() if line.startswith("VmHWM")))
        return found * 1024.0

    def end(self) -> None:
        self._signal(signal.SIGKILL)
        for rank in self._ranks:
            rank.wait()
        self._log.close()
        shutil.rmtree(self._folder)

    def _steps(self) -> int:
        with self._clock.open("rb") as file:
            return int.from_bytes(file.read(8), "little")

    def _signal(self, number: signal.Signals) -> None:
        for rank in self._ranks:
            # A rank that has exited is reported where we wait for steps.
            with suppress(ProcessLookupError):
                os.killpg(rank.pid, number)

    def _judge(self, deadline: float) -> None:
        dead = next((rank for rank in self._ranks if rank.poll() is not None), None)
        if dead is None and monotonic() < deadline:
            return
        self._log.seek(0)
        words = self._log.read().decode("utf-8", "replace")
        how = "is too slow" if dead is None else f"exited with {dead.returncode}"
        raise RuntimeError(f"{self.name} {how}:\n{words[-3000:]}")


@contextmanager
def start_contest(names: Sequence[str], task: Task, *, world: int, layout: str) -> Iterator[Mapping[str, Contender]]:
    """Starts all trainers one after another, warms them up and stops them; reports and skips one that cannot start."""
    with ExitStack() as stack:
        running = {}
        for name in names:
            contender = Contender(name, task, world=world, layout=layout)
            stack.callback(contender.end)
            try:
                contender.turn(3, within=_START)
            except RuntimeError as error:
                if name in {"ours", "bare"}:
                    raise
                print(f"{name}, {layout}, {world} ranks: not measured: {str(error).splitlines()[-1][:200]}", flush=True)
                continue
            running[name] = contender
        yield running


def run_interleaved(running: Mapping[str, Contender], *, turns: int, steps: int) -> dict[str, list[float]]:
    """The median step time of each turn; the order changes from turn to turn."""
    found: dict[str, list[float]] = {name: [] for name in running}
    for turn in range(turns):
        for name in sorted(running, key=lambda name: blake2b(f"{turn} {name}".encode()).digest()):
            found[name].append(float(np.median(running[name].turn(steps))))
    return found


def _die_with_bench() -> None:
    """Kills the training if the bench is killed: prctl(PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
