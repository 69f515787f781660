"""Encodes texts, and marks the supervised tokens: those with a character in a span that the loss is on.

The first of three methods that applies is used; all give the same tokens:

words   each word is looked up; span boundaries are found by the byte lengths of tokens
bytes   `tokenizers` encodes without offsets; boundaries as above
places  `tokenizers` encodes with offsets: works for any tokenizer, but is slower
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.intake.chat_messages import InvalidRowError
from aboard.trainer.data.rows import Ids, Mask
from aboard.trainer.data.tokens.chat_template import Span
from aboard.trainer.data.tokens.token_byte_lengths import build_byte_lengths, convert_to_byte_offsets
from aboard.trainer.data.tokens.word_encoder import build_word_encoder

# An encoding takes some 300 bytes per token: this limits a batch to 0.3 GB for the longest row, else 0.1 GB.
_BATCH_TEXT = 1_000_000

TokensAndMask = tuple[Ids, Mask]


@dataclass(frozen=True, kw_only=True, slots=True)
class SupervisedText:
    """A text and its supervised spans, in order; None if all of it is supervised."""

    text: str
    spans: list[Span] | None


class SupervisedTextEncoder:
    """Encodes texts with one tokenizer, without the special tokens that it would add."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        content = json.loads(tokenizer.to_str())
        self._tokenizer = tokenizer
        self._spelling = build_byte_lengths(content, tokenizer)
        self._words = build_word_encoder(content, tokenizer, self._spelling)

    def __call__(self, passages: Sequence[SupervisedText]) -> list[TokensAndMask | InvalidRowError]:
        """One result per text, in order."""
        results: dict[int, TokensAndMask | InvalidRowError] = {}
        remaining = []
        for at, passage in enumerate(passages):
            ids = self._words(passage.text) if self._words is not None else None
            tokens = None if ids is None else self._mask_by_bytes(passage, ids)
            if tokens is None:
                remaining.append(at)
            else:
                results[at] = tokens
        if remaining:
            self._encode(passages, remaining, results)
        return [results[at] for at in range(len(passages))]

    def _encode(
        self,
        passages: Sequence[SupervisedText],
        remaining: Iterable[int],
        results: dict[int, TokensAndMask | InvalidRowError],
    ) -> None:
        """Encodes with the tokenizer; texts that need offsets are encoded again with them."""
        quick = [at for at in remaining if self._is_quick(passages[at])]
        for at, encoded in self._encode_in_batches(passages, quick, self._tokenizer.encode_batch_fast):
            tokens = (
                encoded
                if isinstance(encoded, InvalidRowError)
                else self._mask_by_bytes(passages[at], _get_ids(encoded))
            )
            if tokens is not None:
                results[at] = tokens
        slow = [at for at in remaining if at not in results]
        for at, encoded in self._encode_in_batches(passages, slow, self._tokenizer.encode_batch):
            results[at] = encoded if isinstance(encoded, InvalidRowError) else _mask_by_offsets(passages[at], encoded)

    def _is_quick(self, passage: SupervisedText) -> bool:
        return passage.spans is None or (self._spelling is not None and self._spelling.fits(passage.text))

    def _encode_in_batches(
        self, passages: Sequence[SupervisedText], some: Sequence[int], encode: Any
    ) -> Iterable[tuple[int, Any]]:
        for batch in _make_batches(passages, some):
            yield from zip(batch, _encode_texts([passages[at].text for at in batch], encode), strict=True)

    def _mask_by_bytes(self, passage: SupervisedText, ids: Ids) -> TokensAndMask | None:
        """None if the bytes of the tokens are not those of the text."""
        mask: Mask = np.full(len(ids), passage.spans is None)
        if passage.spans:
            ends = self._spelling.ends(ids, passage.text) if self._spelling is not None else None
            if ends is None:
                return None
            places = convert_to_byte_offsets(passage.text, [place for span in passage.spans for place in span])
            first = np.searchsorted(ends, places[::2], side="right")
            # A token across the boundary belongs to both sides, and so to the answer.
            last = np.searchsorted(ends, places[1::2], side="left")
            for start, end in zip(first.tolist(), last.tolist(), strict=True):
                mask[start : end + 1] = True
        return ids, mask


def _get_ids(encoded: Any) -> Ids:
    return np.array(encoded.ids, dtype=np.uint32)


def _mask_by_offsets(passage: SupervisedText, encoded: Any) -> TokensAndMask:
    mask: Mask = np.full(len(encoded), passage.spans is None)
    for start, end in passage.spans or ():
        mask[_find_token(encoded, start, len(passage.text)) : _find_token_end(encoded, end, len(passage.text))] = True
    return _get_ids(encoded), mask


def _make_batches(passages: Sequence[SupervisedText], some: Sequence[int]) -> list[list[int]]:
    """Batches of bounded text size."""
    batches: list[list[int]] = []
    size = 0
    for at in some:
        length = len(passages[at].text)
        if not batches or size + length > _BATCH_TEXT:
            batches.append([])
            size = 0
        batches[-1].append(at)
        size += length
    return batches


def _encode_texts(texts: list[str], encode: Any) -> list[Any]:
    """The encodings of all texts; an error of the tokenizer for one text doesn't affect the others."""
    try:
        return list(encode(texts, add_special_tokens=False))
    except Exception as error:  # noqa: BLE001 - it raises bare Exceptions
        if len(texts) == 1:
            return [InvalidRowError("row-tokenizer", f"the tokenizer rejects it: {error}")]
    return [encoding for text in texts for encoding in _encode_texts([text], encode)]


def _find_token(encoded: Any, place: int, length: int) -> int:
    """The first token with a character at or after the position; a tokenizer may assign some spaces to no token."""
    for at in range(place, length):
        token = encoded.char_to_token(at)
        if token is not None:
            return int(token)
    return len(encoded)


def _find_token_end(encoded: Any, end: int, length: int) -> int:
    """One more than the last token with a character before the end."""
    token = _find_token(encoded, end, length)
    # A token across the boundary belongs to both sides, and so to the answer.
    if token < len(encoded) and encoded.token_to_chars(token)[0] < end:
        token += 1
    return token
