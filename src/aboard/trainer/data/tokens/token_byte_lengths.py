"""Byte-level vocabularies (GPT-2, Llama 3, Qwen): each token stands for as many bytes as it has characters.

So token positions in a text are sums of known lengths. The alternative is offsets from `tokenizers`, which keeps
several tables per character for them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, pre_tokenizers

from aboard.trainer.data.rows import Ids

_ALPHABET = frozenset(pre_tokenizers.ByteLevel.alphabet())
# They leave ASCII unchanged, and every part of a text that they don't normalize.
_FORMS = ("NFC", "NFKC", "NFD", "NFKD")


class TokenByteLengths:
    """The byte length of each token; `normalizer` is what the tokenizer applies to a text first, None for nothing."""

    def __init__(self, lengths: Mapping[int, int], normalizer: Any) -> None:
        self._lengths = np.zeros(max(lengths, default=-1) + 1, np.int64)
        self._lengths[list(lengths)] = list(lengths.values())
        self._normalizer = normalizer

    def fits(self, text: str) -> bool:
        """Whether the tokenizer takes the text unchanged."""
        return self._normalizer is None or text.isascii() or self._normalizer.normalize_str(text) == text

    def ends(self, ids: Ids, text: str) -> NDArray[np.int64] | None:
        """The byte after each token; None if they don't add up to the text (a token that absorbs spaces)."""
        ends = np.cumsum(self._lengths[ids])
        size = len(text) if text.isascii() else len(text.encode())
        return ends if size == (ends[-1] if len(ends) else 0) else None


def build_byte_lengths(content: Mapping[str, Any], tokenizer: Tokenizer) -> TokenByteLengths | None:
    """Built from tokenizer.json; None if a token may stand for other bytes than its characters."""
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
    """Converts character positions, in order, to byte offsets."""
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
    """Whether a pre-tokenizer maps bytes in its last step, and only splits before that."""
    steps = step.get("pretokenizers", [step]) if step else []
    *cuts, last = steps or [{}]
    spells = last.get("type") == "ByteLevel" and not last["add_prefix_space"]
    return spells and all(
        each["type"] == "Digits" or (each["type"] == "Split" and each["behavior"] != "Removed") for each in cuts
    )
