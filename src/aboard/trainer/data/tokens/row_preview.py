"""A row's tokens as text for display: which are supervised, control tokens, or past the limit."""

from collections.abc import Callable, Iterator, Sequence

from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.rows import EncodedRow, RowLocation

# A token's text depends on the tokens before it if a word's first token carries the space.
_CONTEXT_TOKENS = 4
# A character has at most four bytes, each of which can be a token of its own.
_MAX_CHARACTER_BYTES = 4
_REPLACEMENT_CHARACTER = "\ufffd"

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, kw_only=True)
class PreviewToken:
    """A token, or several that make up one character. `left_out` is a number of tokens that are not shown."""

    text: Untrusted
    supervised: bool
    special: bool = False
    cut: bool = False
    left_out: int = 0


@dataclass(frozen=True, kw_only=True)
class RowPreview:
    """A row to display; without a tokenizer, each of its texts is one piece."""

    location: RowLocation
    pieces: tuple[PreviewToken, ...]
    tokens: int | None = None


def build_row_preview(
    encoded: EncodedRow,
    decode: Decode,
    specials: frozenset[int],
    *,
    limit: int | None,
    most: int,
    length: int | None = None,
) -> RowPreview:
    """The row's beginning and end, and the tokens around the limit, in about `most` tokens.

    `length` is the row's full length if only its first tokens are available; its end is then not shown.
    """
    ids = [int(each) for each in encoded.ids]
    length = len(ids) if length is None else length
    pieces: list[PreviewToken] = []
    at = 0
    for start, stop in _choose_ranges(len(ids), limit, most, ended=len(ids) == length):
        if start > at:
            pieces.append(_make_gap(start - at))
        pieces += _list_preview_tokens(encoded, ids, range(start, stop), decode, specials, limit)
        at = stop
    if at < length:
        pieces.append(_make_gap(length - at))
    return RowPreview(location=encoded.location, pieces=tuple(pieces), tokens=length)


def _make_gap(tokens: int) -> PreviewToken:
    return PreviewToken(text=NO_TEXT, supervised=False, left_out=tokens)


def _choose_ranges(length: int, limit: int | None, most: int, *, ended: bool) -> list[tuple[int, int]]:
    """The ranges to show, in order and disjoint."""
    if length <= most:
        return [(0, length)]
    ranges = [(0, most // 2), *[(length - most // 4, length)] * ended]
    if limit is not None and limit < length:
        ranges.append((max(0, limit - most // 8), min(length, limit + most // 8)))
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _list_preview_tokens(
    encoded: EncodedRow, ids: list[int], span: range, decode: Decode, specials: frozenset[int], limit: int | None
) -> Iterator[PreviewToken]:
    start = span.start
    for at in span:
        alone = ids[at] in specials or at + 1 == span.stop or ids[at + 1] in specials
        before = ids[max(span.start, start - _CONTEXT_TOKENS) : start]
        text = decode_continuation(decode, before, ids[start : at + 1])
        whole = not text.endswith(_REPLACEMENT_CHARACTER) or at + 1 - start >= _MAX_CHARACTER_BYTES
        if alone or whole or bool(encoded.mask[at]) != bool(encoded.mask[at + 1]):
            yield PreviewToken(
                text=Untrusted(text),
                supervised=bool(encoded.mask[at]),
                special=ids[at] in specials,
                cut=limit is not None and at >= limit,
            )
            start = at + 1


def decode_continuation(decode: Decode, before: Sequence[int], ids: Sequence[int]) -> str:
    """The text that these tokens add after those before them."""
    lead = decode(before)
    whole = decode([*before, *ids])
    return whole[len(lead) :] if whole.startswith(lead) else decode(ids)
