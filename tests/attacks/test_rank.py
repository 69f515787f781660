"""Attacks by a rank: code that runs with the user's rights on a node, and whatever it prints or kills."""

import base64
import os
from pathlib import Path

import pytest

from aboard.core.text.secret_scrubber import SecretScrubber
from aboard.flows.bundle import pack_run
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record

# Made up: random bytes in the shape of a key. The marker lines are assembled, so that no code host objects to them.
KEY_LINES = [base64.b64encode(os.urandom(48)).decode() for _ in range(12)] + ["dGhlIGxhc3QgbGluZQ=="]
BEGIN, END = (f"-----{edge} OPENSSH PRIVATE" + " KEY-----" for edge in ("BEGIN", "END"))
PEM = "\n".join([BEGIN, *KEY_LINES, END])
STEP = "step 12 loss 2.31 tokens/s 51234"


def bundle_output(tmp_path: Path, pieces: list[tuple[int, str, str]]) -> str:
    """The text of a bundle of a run whose ranks wrote these pieces (rank, stream, text), seconds apart."""
    run = RunDirectory(tmp_path / "20261115-0800-brave-otter")
    run.make()
    record = Record.open(run, ranks=2)
    for at, (rank, stream, text) in enumerate(pieces):
        record.add_output(f"n{rank}", rank, stream, text.encode(), 3.0 * at)
        record.tick(3.0 * at)
        record.tick(3.0 * at + 2)
    record.close()
    return b"\n".join(pack_run(run, SecretScrubber()).parts.values()).decode()


def list_leaked_lines(text: str) -> list[str]:
    return [line for line in KEY_LINES if line in text or line[5:30] in text]


def test_a_key_that_a_rank_prints_is_not_in_a_bundle(tmp_path: Path) -> None:
    """Neither its marker nor any line of its body; what the rank printed before and after it stays."""
    text = bundle_output(tmp_path, [(0, "stdout", f"before\n{PEM}\n{STEP}\n")])
    assert list_leaked_lines(text) == []
    assert "before" in text
    assert STEP in text
