"""Vocabularies that spell bytes (GPT-2's, Llama-3's, Qwen's): each token stands for as many bytes as it has letters.

So the places of tokens in a text are a sum of known numbers. `tokenizers` would be asked for them otherwise, and keeps
several tables a character for that.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, pre_tokenizers

from aboard.data.rows import Ids

_ALPHABET = frozenset(pre_tokenizers.ByteLevel.alphabet())
# They leave ASCII alone, and every part of a text that they leave alone.
_FORMS = ("NFC", "NFKC", "NFD", "NFKD")


class TokenByteLengths:
    """How many bytes each token spells; `normalizer` is what the tokenizer does to a text before, None for nothing."""

    def __init__(self, lengths: Mapping[int, int], normalizer: Any) -> None:
        self._lengths = np.zeros(max(lengths, default=-1) + 1, np.int64)
        self._lengths[list(lengths)] = list(lengths.values())
        self._normalizer = normalizer

    def fits(self, text: str) -> bool:
        """Whether the tokenizer takes the text as it is."""
        return self._normalizer is None or text.isascii() or self._normalizer.normalize_str(text) == text

    def ends(self, ids: Ids, text: str) -> NDArray[np.int64] | None:
        """The byte behind each token; None where they don't come to the text (a token that takes spaces with it)."""
        ends = np.cumsum(self._lengths[ids])
        size = len(text) if text.isascii() else len(text.encode())
        return ends if size == (ends[-1] if len(ends) else 0) else None


def build_byte_lengths(content: Mapping[str, Any], tokenizer: Tokenizer) -> TokenByteLengths | None:
    """By what its tokenizer.json says; None where a token may stand for other bytes than its letters."""
    model, normalizer = content["model"], content.get("normalizer")
    if normalizer is not None and normalizer["type"] not in _FORMS:
        return None
    if not _is_byte_preserving(content.get("pre_tokenizer")):
        return None
    if model.get("type") != "BPE" or not model["vocab"].keys() >= _ALPHABET:
        return None
    if any(model.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")):
        return None
    lengths = {number: len(token) for token, number in model["vocab"].items()}
    lengths |= {token["id"]: len(token["content"].encode()) for token in content.get("added_tokens", ())}
    return TokenByteLengths(lengths, tokenizer.normalizer)


def convert_to_byte_offsets(text: str, places: Sequence[int]) -> list[int]:
    """Places in the text, in order, as places in its bytes."""
    if text.isascii():
        return list(places)
    offsets = []
    at = size = 0
    for place in places:
        size += len(text[at:place].encode())
        at = place
        offsets.append(size)
    return offsets


def _is_byte_preserving(step: Mapping[str, Any] | None) -> bool:
    """Whether a pre-tokenizer spells bytes in its last step, and only cuts in those before."""
    steps = step.get("pretokenizers", [step]) if step else []
    *cuts, last = steps or [{}]
    spells = last.get("type") == "ByteLevel" and not last["add_prefix_space"]
    return spells and all(
        each["type"] == "Digits" or (each["type"] == "Split" and each["behavior"] != "Removed") for each in cuts
    )
