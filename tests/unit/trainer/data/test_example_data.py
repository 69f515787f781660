"""The examples ask their models what was not in the training data."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[4] / "examples"
# How to find the question in a row; a text of pretraining begins with it.
QUESTIONS: dict[str, Callable[[Any], str]] = {
    "chat": lambda row: row["messages"][0]["content"],
    "finetune": lambda row: row["input"],
    "lora": lambda row: row["prompt"],
    "pretrain": lambda row: row["begin"] if "begin" in row else row["text"].partition(".")[0] + ".",
    "trl-dpo": lambda row: row["prompt"],
}


@pytest.mark.parametrize("example", QUESTIONS)
def test_no_question_is_in_the_training_data(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A right answer is learned and not remembered: held.jsonl shares no question with the other files."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / example / "make_data.py"), run_name="__main__")
    found = {
        path.stem: [QUESTIONS[example](json.loads(line)) for line in path.read_text("utf-8").splitlines()]
        for path in tmp_path.glob("*.jsonl")
    }
    asked = set(found.pop("held"))
    assert len(asked) >= 32
    assert found
    for name, trained in found.items():
        assert len(trained) > len(asked), name
        assert asked.isdisjoint(trained), name


@pytest.mark.parametrize("example", ["accelerate-fsdp", "hf-trainer"])
def test_no_word_is_in_the_training_data(example: str) -> None:
    """The words that ask.py asks for are not those of train.py."""
    known, asked = runpy.run_path(str(EXAMPLES / example / "words.py"))["split_words"]()
    assert len(set(asked)) == 100
    assert set(asked).isdisjoint(known)


@pytest.mark.ci
@pytest.mark.parametrize("example", ["torchrun", "deepspeed-zero2"])
def test_no_picture_is_in_the_training_data(example: str) -> None:
    """The pictures that ask.py shows are not those of train.py."""
    (known, _), (asked, _) = runpy.run_path(str(EXAMPLES / example / "letters.py"))["split_pictures"]()
    pictures = set(map(tuple, asked.tolist()))
    assert len(pictures) == 100
    assert pictures.isdisjoint(map(tuple, known.tolist()))
