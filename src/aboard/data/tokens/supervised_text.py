"""Texts to tokens, and which of the tokens are supervised: those with a character in a span that the loss is on.

Three ways lead to the same tokens, the first that applies:

words   each word is looked up; the borders of spans are found by the bytes that tokens spell
bytes   `tokenizers` encodes, without asking it for places in the text; borders as above
places  `tokenizers` encodes and tells the places: right for any tokenizer, and slower
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from aboard.data.intake.chat_messages import InvalidRowError
from aboard.data.rows import Ids, Mask
from aboard.data.tokens.chat_template import Span
from aboard.data.tokens.token_byte_lengths import build_byte_lengths, convert_to_byte_offsets
from aboard.data.tokens.word_encoder import build_word_encoder
from aboard.lazy_dataclass import dataclass

# An encoding takes some 300 bytes a token: this bounds what a batch takes to 0.3 GB for the longest row, else 0.1 GB.
_BATCH_TEXT = 1_000_000

TokensAndMask = tuple[Ids, Mask]


@dataclass(frozen=True, kw_only=True, slots=True)
class SupervisedText:
    """A text, and the spans of it that are supervised, in order; None where all of it is."""

    text: str
    spans: list[Span] | None


class SupervisedTextEncoder:
    """Encodes passages with one tokenizer, without the tokens that it would put around a text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        content = json.loads(tokenizer.to_str())
        self._tokenizer = tokenizer
        self._spelling = build_byte_lengths(content, tokenizer)
        self._words = build_word_encoder(content, tokenizer, self._spelling)

    def __call__(self, passages: Sequence[SupervisedText]) -> list[TokensAndMask | InvalidRowError]:
        """One result for each, in order."""
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
        """By the tokenizer; those that need it are done again with places."""
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
        """None where the tokens don't spell the text."""
        mask: Mask = np.full(len(ids), passage.spans is None)
        if passage.spans:
            ends = self._spelling.ends(ids, passage.text) if self._spelling is not None else None
            if ends is None:
                return None
            places = convert_to_byte_offsets(passage.text, [place for span in passage.spans for place in span])
            first = np.searchsorted(ends, places[::2], side="right")
            # A token over the border belongs to both sides, and so to the answer.
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
    """Runs of bounded text."""
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
    """The encodings of all texts; what the tokenizer raises of one must not be the others'."""
    try:
        return list(encode(texts, add_special_tokens=False))
    except Exception as error:  # noqa: BLE001 - it raises bare Exceptions
        if len(texts) == 1:
            return [InvalidRowError("row-tokenizer", f"the tokenizer refuses it: {error}")]
    return [encoding for text in texts for encoding in _encode_texts([text], encode)]


def _find_token(encoded: Any, place: int, length: int) -> int:
    """The first token that has a character at the place or behind it; a tokenizer may give some spaces to no token."""
    for at in range(place, length):
        token = encoded.char_to_token(at)
        if token is not None:
            return int(token)
    return len(encoded)


def _find_token_end(encoded: Any, end: int, length: int) -> int:
    """One more than the last token that has a character before the end."""
    token = _find_token(encoded, end, length)
    # A token over the border belongs to both sides, and so to the answer.
    if token < len(encoded) and encoded.token_to_chars(token)[0] < end:
        token += 1
    return token
