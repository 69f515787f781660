"""Removes known secrets from a stream before it reaches a disk or the network."""

from __future__ import annotations

import binascii
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator

MASK = b"[secret]"
# A value this short would mask ordinary words and numbers, and is no secret.
SHORTEST = 6
# A line of a secret with many lines, such as a key, that is one by itself.
SHORTEST_LINE = 32
WORD = 4
# To scan for one form takes as long as to look up this many words for each byte.
WORDS_PER_SCAN = 1 / 150
# Beginnings of longer forms are looked for one form after the other.
LONG_FORM = 128
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")


class Redactor:
    """Masks each secret wherever it occurs, however reads split the stream.

    Also its base64, at any place in what was encoded, and its URL-encoded, JSON-escaped and hexadecimal forms.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        values = {secret.encode("utf-8", "surrogateescape") for secret in secrets}
        forms = {form for value in values if len(value) >= SHORTEST for form in _list_forms(value)}
        self.longest = max(map(len, forms), default=0)
        self._filters = _build_filters(forms)
        self._bytes = frozenset(b"".join(forms))
        self._starts: dict[bytes, list[bytes]] = {}
        for form in forms:
            self._starts.setdefault(form[:SHORTEST], []).append(form)
        self._long = [form for form in forms if len(form) > LONG_FORM]
        self._short_starts = {form[:size] for form in forms for size in range(1, SHORTEST)}
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Returns what is safe to pass on; a possible beginning of a secret at the end is held back."""
        return self._mask(self._held + data, last=False) if self._filters else data

    def flush(self) -> bytes:
        return self._mask(self._held, last=True)

    def _mask(self, data: bytes, *, last: bool) -> bytes:
        safe = []
        start, open_from = 0, len(data) if last else self._beginning(data, 0)
        for first, end in self._find(data):
            # Data that may still become a longer secret is not decided yet.
            if open_from <= first:
                break
            safe += [data[start:first], MASK]
            start = end
            if open_from < start:
                open_from = self._beginning(data, start)
        self._held = data[open_from:]
        return b"".join([*safe, data[start:open_from]])

    def _find(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Where secrets are: of two that overlap the earlier one, of two that start together the longer one."""
        last = 0
        for first, size in sorted({found for each in self._filters for found in each.find(data)}):
            if first >= last:
                last = first - size
                yield first, last

    def _beginning(self, data: bytes, start: int) -> int:
        """The first place from `start` on where the data ends inside of a secret; its end if there is none."""
        if not data or data[-1] not in self._bytes:
            return len(data)
        end = len(data)
        near = max(start, end - LONG_FORM + 1)
        far = [self._long_beginning(data, form, start, near) for form in self._long] if near > start else []
        if far and min(far) < near:
            return min(far)
        for place in range(near, end):
            rest = data[place : place + SHORTEST]
            if len(rest) < SHORTEST:
                if rest in self._short_starts:
                    return place
            elif rest in self._starts:
                tail = data[place:]
                if any(len(tail) < len(form) and form.startswith(tail) for form in self._starts[rest]):
                    return place
        return end

    def _long_beginning(self, data: bytes, form: bytes, start: int, near: int) -> int:
        """The first place before `near` where the data ends inside of this form; `near` if there is none."""
        end = len(data)
        place = data.find(form[:SHORTEST], max(start, end - len(form) + 1), near + SHORTEST - 1)
        while place >= 0:
            if form.startswith(data[place:]):
                return place
            place = data.find(form[:SHORTEST], place + 1, near + SHORTEST - 1)
        return near


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """Masks secrets in a whole text."""
    redactor = Redactor(secrets)
    data = text.encode("utf-8", "surrogatepass")
    return (redactor.feed(data) + redactor.flush()).decode("utf-8", "replace")


class _WordFilter:
    """Finds any of many forms by looking up every `stride`-th word of the data.

    A form of at least `stride + 3` bytes contains such a word within its first bytes, wherever it lies.
    """

    def __init__(self, forms: Iterable[bytes], stride: int) -> None:
        self._stride = stride
        self._words: dict[int, list[tuple[int, bytes]]] = {}
        for form in forms:
            for offset in range(stride):
                (word,) = memoryview(form[offset : offset + WORD]).cast("I")
                self._words.setdefault(word, []).append((offset, form))
        self._known = frozenset(self._words)

    def find(self, data: bytes) -> Iterator[tuple[int, int]]:
        """The place of each form, and its length below zero."""
        whole = len(data) // WORD * WORD
        words = memoryview(data)[:whole].cast("I")[:: self._stride // WORD].tolist() if whole else []
        if self._known.isdisjoint(words):
            return
        for number, word in enumerate(words):
            if word in self._known:
                for offset, form in self._words[word]:
                    first = number * self._stride - offset
                    if first >= 0 and data.startswith(form, first):
                        yield first, -len(form)


class _ScanFilter:
    """Finds few forms, too short for the other filter, one after the other."""

    def __init__(self, forms: Iterable[bytes]) -> None:
        self._forms = tuple(forms)

    def find(self, data: bytes) -> Iterator[tuple[int, int]]:
        for form in self._forms:
            first = data.find(form)
            while first >= 0:
                yield first, -len(form)
                first = data.find(form, first + 1)


def _build_filters(forms: Iterable[bytes]) -> list[_WordFilter | _ScanFilter]:
    """The cheapest way to find all forms: longer strides look up fewer words, but leave more forms to scan for."""
    counted = sorted(forms, key=len)
    lengths = [len(form) for form in counted]
    strides = {stride: bisect_left(lengths, stride + WORD - 1) for stride in (4, 8, 16)}
    stride = min(strides, key=lambda each: WORDS_PER_SCAN * strides[each] + 1 / each)
    scanned, looked_up = counted[: strides[stride]], counted[strides[stride] :]
    if len(looked_up) * WORDS_PER_SCAN < 1 / stride:
        scanned, looked_up = counted, []
    filters: list[_WordFilter | _ScanFilter] = [_WordFilter(looked_up, stride)] if looked_up else []
    return [*filters, _ScanFilter(scanned)] if scanned else filters


def _list_forms(value: bytes) -> Iterator[bytes]:
    """What a secret looks like in a log: itself, its lines, and both encoded in the usual ways."""
    lines = [line.strip() for line in value.splitlines()]
    own = {value, *(line for line in lines if len(line) >= SHORTEST_LINE and b" " not in line)}
    for each in own:
        text = each.decode("utf-8", "replace")
        yield each
        yield json.dumps(text)[1:-1].encode()
        yield json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "replace")
        yield from (form.encode() for form in (each.hex(), each.hex().upper()))
        for pattern in ("%%%02X", "%%%02x"):
            quoted = "".join(chr(byte) if byte in _UNRESERVED else pattern % byte for byte in each)
            yield quoted.encode()
            yield quoted.replace("%20", "+").encode()
        for before in range(3):
            # Without the characters that also depend on the bytes before and after.
            start, end = (0, 2, 3)[before], (before + len(each)) * 8 // 6
            encoded = binascii.b2a_base64(b"\0" * before + each, newline=False)[start:end]
            yield encoded
            yield encoded.replace(b"+", b"-").replace(b"/", b"_")
