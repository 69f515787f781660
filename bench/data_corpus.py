"""A generated corpus: Zipf-distributed words, realistic lengths, in the five common formats."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>\n' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
)
_VOWELS, _OTHERS = "aeiou", "bcdfghjklmnprstvwz"


class Writer:
    """Generates sentences of made-up words, frequent ones short; deterministic for a seed."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        shape = np.random.default_rng(0)
        syllables = [a + b for a in _OTHERS for b in _VOWELS]
        lengths = np.minimum(1 + np.log2(1 + np.arange(40_000)) // 4, 6).astype(int)
        self._words = np.array(["".join(shape.choice(syllables, size)) for size in lengths], dtype=object)
        weights = 1 / np.arange(1, len(lengths) + 1) ** 1.05
        self._ends = np.cumsum(weights / weights.sum())
        self._pool = self._draw()
        self._at = 0

    def text(self, median: float, spread: float) -> str:
        """A text whose number of words is log-normal."""
        words = max(2, min(int(self._rng.lognormal(np.log(median), spread)), 20_000))
        if self._at + words > len(self._pool):
            self._pool, self._at = self._draw(), 0
        self._at += words
        return " ".join(self._pool[self._at - words : self._at]).capitalize() + "."

    def turns(self) -> int:
        return 1 + int(self._rng.geometric(0.6))

    def _draw(self) -> np.ndarray:
        words = self._words[np.searchsorted(self._ends, self._rng.random(400_000))].copy()
        stops = self._rng.random(len(words)) < 0.08
        words[stops] += "."
        return words


def _make_alpaca_row(writer: Writer) -> dict[str, object]:
    given = writer.text(40, 0.8) if writer.turns() > 2 else ""
    return {"instruction": writer.text(15, 0.6), "input": given, "output": writer.text(90, 1.0)}


def _make_turns(writer: Writer) -> Iterator[tuple[bool, str]]:
    for _ in range(writer.turns()):
        yield False, writer.text(25, 0.9)
        yield True, writer.text(120, 1.0)


def _make_messages_row(writer: Writer) -> dict[str, object]:
    roles = {False: "user", True: "assistant"}
    return {"messages": [{"role": roles[answer], "content": text} for answer, text in _make_turns(writer)]}


def _make_sharegpt_row(writer: Writer) -> dict[str, object]:
    roles = {False: "human", True: "gpt"}
    return {"conversations": [{"from": roles[answer], "value": text} for answer, text in _make_turns(writer)]}


def _make_prompt_row(writer: Writer) -> dict[str, object]:
    return {"prompt": writer.text(30, 0.8), "completion": " " + writer.text(100, 1.0)}


def _make_text_row(writer: Writer) -> dict[str, object]:
    return {"text": writer.text(350, 1.1)}


FORMATS: dict[str, Callable[[Writer], dict[str, object]]] = {
    "alpaca": _make_alpaca_row,
    "messages": _make_messages_row,
    "sharegpt": _make_sharegpt_row,
    "prompt-completion": _make_prompt_row,
    "text": _make_text_row,
}


def write_corpus(folder: Path, size: int) -> list[Path]:
    """Writes one jsonl file per format, `size` bytes together."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for seed, (name, row) in enumerate(FORMATS.items()):
        writer, written = Writer(seed), 0
        path = folder / f"{name}.jsonl"
        with path.open("w", encoding="utf-8", buffering=1 << 20) as file:
            while written < size // len(FORMATS):
                written += file.write(json.dumps(row(writer)) + "\n")
        paths.append(path)
    return paths


def make_tokenizer(folder: Path, words: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE as in GPT-2 and Llama-3, trained on the same kind of text, saved to a directory."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=words,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    writer = Writer(99)
    tokenizer.train_from_iterator((writer.text(350, 1.1) for _ in range(1000)), trainer)
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    make: Any = PreTrainedTokenizerFast  # transformers annotates none of it
    made: PreTrainedTokenizerFast = make(tokenizer_object=tokenizer, chat_template=CHATML, **names)
    made.save_pretrained(folder)
    return made
