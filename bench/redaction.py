"""Redaction: which secrets of a corpus are masked, what else is changed, and the cost for bundles and streams."""

import argparse
import json
import random
import string
import subprocess
import sys
from functools import partial
from pathlib import Path
from time import process_time

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))

from secret_corpus import CORPUS, read_corpus

from aboard.agent.secret_redaction import Redactor
from aboard.core.secrets.secret_scrubber import SecretScrubber, mask_secrets
from figures import Figures, main

READ = 65_536  # what the supervisor reads at once
MB = 1e6
# The best of these: other load on the machine slows a core down.
ROUNDS = 3
# In its own process, to measure its peak memory beyond that of the text.
SCRUB_LINE = """
import json, re, sys
from pathlib import Path
from aboard.core.secrets.secret_scrubber import mask_secrets
text = "step 12 loss 2.31 " * (int(sys.argv[1]) // 18)
def read_peak():
    # Not from getrusage, which begins with the peak of the parent.
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1e3
before = read_peak()
assert len(mask_secrets(text)) == len(text)
print(json.dumps(read_peak() - before))
"""


def measure(figures: Figures, quick: bool, *, corpus: Path) -> None:  # noqa: FBT001 - the benches' usual option
    """Measures what is masked, and megabytes per second of one thread."""
    _score_corpus(figures, corpus)
    text = _write_log(10_000_000 if quick else 50_000_000)
    _measure_scrubber(figures, text)
    _measure_redactor(figures, text.encode())
    size = 100_000_000
    done = subprocess.run(
        [sys.executable, "-c", SCRUB_LINE, str(size)], capture_output=True, text=True, check=True, timeout=300
    )
    # The text as bytes, once; what the rules need is bounded.
    figures.add("peak memory for a line of 100 MB, beyond it", json.loads(done.stdout), 250, unit="MB")


def _score_corpus(figures: Figures, corpus: Path) -> None:
    cases = read_corpus(corpus)
    for kind, bar in (("secrets left", 2.0), ("innocents changed", 2.0)):
        chosen = [case for case in cases if (case.secret is None) == (kind == "innocents changed")]
        failed = [case.id for case in chosen if not case.passes(mask_secrets)]
        if chosen:
            note = f"{len(failed)} of {len(chosen)}{': ' if failed else ''}{', '.join(failed)}"
            figures.add(f"{kind}, {corpus.name}", 100 * len(failed) / len(chosen), bar, unit="%", note=note)


def _measure_scrubber(figures: Figures, text: str) -> None:
    """Streams of 400 lines, as in a bundle; all that a log has of homes and users is removed, too."""
    lines = text.splitlines(keepends=True)
    seconds = []
    for _ in range(ROUNDS):
        scrubber = SecretScrubber(users=["adalove"])
        began = process_time()
        for start in range(0, len(lines), 400):
            scrubber.pieces(lines[start : start + 400])
        seconds.append(process_time() - began)
    _add_speed(figures, "bundle", len(text.encode()), min(seconds))


def _measure_redactor(figures: Figures, data: bytes) -> None:
    """A stream with 20 known secrets and all their encoded forms."""
    chosen = random.Random(20)  # noqa: S311 - no real secrets
    letters = string.ascii_letters + string.digits
    redactor = Redactor("hf_" + "".join(chosen.choices(letters, k=34)) for _ in range(20))
    seconds = []
    for _ in range(ROUNDS):
        began = process_time()
        for start in range(0, len(data), READ):
            redactor.feed(data[start : start + READ])
        seconds.append(process_time() - began)
    _add_speed(figures, "live stream, 20 known secrets", len(data), min(seconds))


def _add_speed(figures: Figures, name: str, size: int, seconds: float) -> None:
    note = f"{size / MB / seconds:.0f} MB/s"
    figures.add(f"{name}: CPU seconds per 100 MB", 100 * MB * seconds / size, 2.0, unit="s", note=note)


def _write_log(size: int) -> str:
    """What a training prints: steps, progress bars, NCCL, downloads, checkpoints, configuration, and some secrets."""
    chosen = random.Random(1)  # noqa: S311 - a log
    number = chosen.randrange
    lines: list[str] = []
    written = step = 0
    while written < size:
        step += 1
        at = f"2026-11-15 05:{number(60):02}:{number(60):02},{number(1000):03}"
        step_line = (
            f"{at} INFO [trainer.py:212] step {step}/100000 loss {3 * chosen.random():.4f} lr {chosen.random():.3e}"
            f" norm {chosen.random():.3f} tokens/s {1e6 * chosen.random():.1f} tokens={number(10**8)} mfu {number(60)}%"
        )
        new = [step_line]
        if step % 5 == 0:
            new.append(f"Epoch 1: {step % 100}%|█████     | {step}/100000 [00:12<01:48, {chosen.random():.2f}s/it]")
        if step % 10 == 0:
            new.append(
                f"cn041:3141:3199 [{number(8)}] NCCL INFO Channel {number(32):02}/0 : {number(16)}[0] -> 3[0] NET/IB"
            )
        if step % 20 == 0:
            new.append(
                f"{at} DEBUG https://huggingface.co:443 HEAD /acme/llm-7b/resolve/main/model-{number(99):05}.bin 302"
            )
        if step % 50 == 0:
            new.append(
                f"{at} INFO saved s3://acme/run-{step:08x}/{step}/ sha256 {chosen.getrandbits(256):064x} key: q_proj"
            )
        if step % 200 == 0:
            new.append("config: max_tokens=4096 tokenizer=Qwen/Qwen2.5-7B eos_token='<|im_end|>' cwd=/home/adalove/run")
        if step % 1000 == 0:
            new.append(f"wandb: using api key {chosen.getrandbits(160):040x} and https://ada:hunter2x@db/x")
        lines += new
        written += sum(len(line) + 1 for line in new)
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    options, sys.argv[1:] = parser.parse_known_args()
    bench = partial(measure, corpus=options.corpus)
    bench.__doc__ = f"{measure.__doc__} --corpus DIRECTORY scores another corpus (tests/kit/secret_corpus.py)."
    main("redaction", bench)
