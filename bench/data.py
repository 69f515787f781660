"""Data preparation: speed against bare tokenizers, datasets and TRL; memory; padding; data order; kills."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from time import monotonic, perf_counter

from aboard.trainer.data.sampling.source_mixing import build_permutation
from data_corpus import make_tokenizer, write_corpus
from figures import Figures, main

MB = 1e6
LENGTH = 2048
CORES = len(os.sched_getaffinity(0))

# Each in its own process, so that nothing is warm from an earlier one.
OURS = """
import json, sys
from pathlib import Path
from time import monotonic
from aboard.trainer.data.tokens.encoder import Encoder
from aboard.trainer.data.tokenize_workers.prepare_data import (PreparationSource, prepare_data)
from aboard.trainer.data.intake.read_chunk import detect_format
from aboard.trainer.data.intake.source_chunks import (SourceSpec, list_source_chunks)

if __name__ == "__main__":
    folder, cache, tokenizer, workers, chunk = sys.argv[1:]
    encoder = Encoder(tokenizer)
    began = monotonic()
    steps = []
    given = []
    for path in sorted(Path(folder).iterdir()):
        chunks = list_source_chunks(SourceSpec(path=str(path)), chunk_bytes=int(chunk))
        given.append(PreparationSource(form=detect_format(chunks), chunks=tuple(chunks)))
    made = prepare_data(given, encoder, Path(cache), max_length=2048, workers=int(workers),
                   progress=lambda step: steps.append((monotonic(), step.tokens)))
    seconds = monotonic() - began
    first = next((step for step in steps if step[1]), (began, 0))
    running = (made.shards.manifest.tokens - first[1]) / (began + seconds - first[0])
    bins = made.bins.manifest
    print(json.dumps([seconds, made.shards.manifest.tokens, bins.full, bins.bins, len(made.shards), running]))
"""

BARE = """
import json, sys
from time import monotonic
from transformers import PreTrainedTokenizerFast

backend = PreTrainedTokenizerFast.from_pretrained(sys.argv[2]).backend_tokenizer
texts = [json.loads(line)["text"] for line in open(sys.argv[1], encoding="utf-8")]
seconds = tokens = 0
for start in range(0, len(texts), 1000):
    batch = texts[start : start + 1000]
    began = monotonic()
    encodings = backend.encode_batch(batch, add_special_tokens=False)
    seconds += monotonic() - began
    tokens += sum(map(len, encodings))
print(json.dumps([seconds, tokens]))
"""

DATASETS = """
import json, os, sys
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process for each core
from time import monotonic
import datasets
from transformers import PreTrainedTokenizerFast

if __name__ == "__main__":
    datasets.disable_progress_bars()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(sys.argv[2])
    began = monotonic()
    rows = datasets.load_dataset("json", data_files=sys.argv[1], split="train", cache_dir=sys.argv[3])
    done = rows.map(lambda batch: {"input_ids": tokenizer(batch["text"], add_special_tokens=False)["input_ids"]},
                    batched=True, remove_columns=rows.column_names, num_proc=int(sys.argv[4]))
    seconds = monotonic() - began
    print(json.dumps([seconds, sum(map(len, done.with_format("numpy")["input_ids"]))]))
"""

TRL = """
import json, os, sys
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process for each core
from time import monotonic
import datasets
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

if __name__ == "__main__":
    datasets.disable_progress_bars()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(sys.argv[2])
    settings = SFTConfig(output_dir=sys.argv[3], dataset_num_proc=int(sys.argv[4]), max_length=2048, packing=True,
                         use_cpu=True, bf16=False, report_to=[])
    trainer = SFTTrainer.__new__(SFTTrainer)  # its preparation, without a model
    trainer._tokenizer, trainer.chat_template = tokenizer, None
    trainer.completion_only_loss = False
    began = monotonic()
    rows = datasets.load_dataset("json", data_files=sys.argv[1], split="train", cache_dir=sys.argv[3])
    done = trainer._prepare_dataset(rows, tokenizer, settings, True, None, "train")
    seconds = monotonic() - began
    print(json.dumps([seconds, sum(map(len, done.with_format("numpy")["input_ids"]))]))
"""


OTHERS = (("datasets.map", DATASETS), ("TRL's preparation", TRL))


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's only option
    """Measures data preparation: speed, memory, padding, data order, recovery from kills."""
    _measure_order(figures)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        make_tokenizer(folder / "tokenizer", 8000 if quick else 32_000)
        # With less than 16 MB, filling the word cache would dominate.
        _measure_speed(
            figures, folder, 2**24 if quick else 2**26, rounds=1 if quick else 3, others=() if quick else OTHERS
        )
        _measure_memory(figures, folder, 2**23 if quick else 2**30)
        _measure_kills(figures, folder, 2**20 if quick else 2**22, times=1 if quick else 12)


def _measure_order(figures: Figures) -> None:
    """The best of several rounds at each index, which removes noise."""
    near, far = build_permutation(1, 0, 10**13), build_permutation(1, 0, 10**13)
    costs = {10: float("inf"), 10**12: float("inf")}
    for _ in range(20):
        for index, order in ((10, near), (10**12, far)):
            began = perf_counter()
            for _ in range(2000):
                order(index)
            costs[index] = min(costs[index], (perf_counter() - began) / 2000)
    note = f"{1e6 * costs[10]:.1f} µs and {1e6 * costs[10**12]:.1f} µs"
    figures.add("data order: cost at index 10¹² / at index 10", costs[10**12] / costs[10], 1.25, unit="×", note=note)


def _measure_speed(
    figures: Figures, folder: Path, size: int, *, rounds: int, others: tuple[tuple[str, str], ...]
) -> None:
    """Compares with the others on the same rows, in turns, so that a slower machine slows all of them.

    Ours reads rows of five formats, renders, masks, counts for the data check, packs and writes. The others get
    rendered texts, and mask nothing.
    """
    rows, texts = folder / "rows", folder / "texts.jsonl"
    write_corpus(rows, size)
    count = _write_texts(folder, rows, texts)
    given = str(texts), str(folder / "tokenizer")
    ratios: dict[str, list[float]] = {}
    notes: dict[str, str] = {}
    for _ in range(rounds):
        bare = _compute_rate(_run_code(BARE, *given))
        running, whole = _measure_ours(folder, rows)
        ratios.setdefault("bare encode_batch", []).append(bare / running)
        notes["bare encode_batch"] = f"{running / 1e6:.2f} and {bare / 1e6:.2f} M tokens/s; {count} rows"
        for name, code in others:
            rate = _measure_other(name, code, folder, given)
            if rate is not None:
                ratios.setdefault(name, []).append(rate / whole)
                notes[name] = f"{whole / 1e6:.2f} and {rate / 1e6:.2f} M tokens/s, including process start"
    for name, found in ratios.items():
        bar = 1 / 0.9 if name.startswith("bare") else 1.0
        note = f"{notes[name]}; median of {len(found)}"
        figures.add(f"speed of {name} / ours", sorted(found)[len(found) // 2], bar, unit="×", note=note)


def _measure_ours(folder: Path, rows: Path) -> tuple[float, float]:
    """Tokens per second, without and with the start of the workers.

    The start takes two seconds: little for 1 GB but much for a part of it, and a bare loop has none.
    """
    cache = folder / "cache"
    seconds, tokens, *_, running = _run_code(
        OURS, str(rows), str(cache), str(folder / "tokenizer"), str(CORES), str(1 << 20)
    )
    shutil.rmtree(cache)
    return running, tokens / seconds


def _measure_other(name: str, code: str, folder: Path, given: tuple[str, str]) -> float | None:
    cache = folder / name.partition(" ")[0]
    try:
        return _compute_rate(_run_code(code, *given, str(cache), str(CORES)))
    except subprocess.CalledProcessError as error:
        print(f"{name}: not measured: {error.stderr.strip().splitlines()[-1]}", flush=True)
        return None
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def _measure_memory(figures: Figures, folder: Path, size: int) -> None:
    """Prepares the full size: peak memory, and padding of the packed sequences."""
    rows = folder / "many"
    write_corpus(rows, size)
    (seconds, tokens, full, bins, documents, _), peak = _run_and_measure_memory(
        OURS, str(rows), str(folder / "cache"), str(folder / "tokenizer"), str(CORES), str(16 << 20)
    )
    shutil.rmtree(rows)
    note = f"{size / 1e9:.2f} GB, {documents} rows, {size / MB / seconds:.1f} MB/s, {tokens / seconds:.0f} tokens/s"
    figures.add("peak memory, RSS of all processes", peak / 1e9, 1.0, unit="GB", note=note)
    figures.add(
        "padding in packed sequences",
        1 - full,
        0.02,
        note=f"{bins} packed sequences of {LENGTH}, {100 * full:.2f} % full",
    )


def _write_texts(folder: Path, rows: Path, texts: Path) -> int:
    """Writes the rows as rendered texts: the others do not have to apply templates or parse formats."""
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - two seconds that --help need not take

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer")
    count = 0
    with texts.open("w", encoding="utf-8") as file:
        for path in sorted(rows.iterdir()):
            for line in path.read_text("utf-8").splitlines():
                text = _render_row(json.loads(line), tokenizer.apply_chat_template)
                file.write(json.dumps({"text": text}) + "\n")
                count += 1
    return count


def _render_row(row: dict[str, str | list[dict[str, str]]], template: Callable[..., object]) -> str:
    if "text" in row:
        return f"{row['text']}<|im_end|>"
    if "prompt" in row:
        return f"{row['prompt']}{row['completion']}<|im_end|>"
    if "instruction" in row:
        asked = f"{row['instruction']}\n{row['input']}" if row["input"] else row["instruction"]
        turns = [("user", asked), ("assistant", row["output"])]
    elif "messages" in row:
        turns = [(turn["role"], turn["content"]) for turn in row["messages"] if isinstance(turn, dict)]
    else:
        roles = {"human": "user", "gpt": "assistant"}
        turns = [(roles[turn["from"]], turn["value"]) for turn in row["conversations"] if isinstance(turn, dict)]
    messages = [{"role": role, "content": content} for role, content in turns]
    return str(template(messages, tokenize=False))


def _measure_kills(figures: Figures, folder: Path, size: int, *, times: int) -> None:
    """SIGKILL at random moments, then resume; all files must equal those of one uninterrupted worker."""
    rows = folder / "few"
    write_corpus(rows, size)
    tokenizer, few = str(folder / "tokenizer"), str(size // 16)
    began = monotonic()
    _run_code(OURS, str(rows), str(folder / "one"), tokenizer, "1", few)
    whole = monotonic() - began
    truth = _hash_files(folder / "one")
    draw, unequal, interrupted = random.Random(1), 0, 0  # noqa: S311 - no secrets
    for number in range(times):
        cache = folder / f"killed-{number}"
        process = _start_process(OURS, str(rows), str(cache), tokenizer, "2", few)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=draw.uniform(0.2, 1.0) * whole)
        interrupted += process.poll() is None
        process.kill()
        process.communicate()
        _run_code(OURS, str(rows), str(cache), tokenizer, "2", few)
        unequal += _hash_files(cache) != truth
        shutil.rmtree(cache)
    note = f"of {times}, {interrupted} killed before they finished"
    figures.add("preparations with different bytes after a kill", unequal, 0, note=note)


def _hash_files(cache: Path) -> dict[str, str]:
    files = (path for path in sorted(cache.rglob("*")) if path.is_file())
    own = {".lock", ".json"}
    return {
        str(path.relative_to(cache)): sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.suffix not in own or path.name == "manifest.json"
    }


def _start_process(code: str, *arguments: str) -> subprocess.Popen[str]:
    script = Path(arguments[0]).parent / f"{sha256(code.encode()).hexdigest()[:8]}.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TOKENIZERS_PARALLELISM": "true"}
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _run_code(code: str, *arguments: str) -> list[float]:
    process = _start_process(code, *arguments)
    output, errors = process.communicate(timeout=3600)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, code, output, errors)
    found: list[float] = json.loads(output.splitlines()[-1])
    return found


def _compute_rate(seconds_and_tokens: list[float]) -> float:
    seconds, tokens = seconds_and_tokens
    return tokens / seconds


def _run_and_measure_memory(code: str, *arguments: str) -> tuple[list[float], float]:
    """Its output, and the peak memory of the process and its children."""
    process = _start_process(code, *arguments)
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(map(_read_resident_bytes, _list_process_tree(process.pid))))
        time.sleep(0.05)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1]), peak


def _list_process_tree(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from _list_process_tree(int(child))


def _read_resident_bytes(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


if __name__ == "__main__":
    main("data", measure)
