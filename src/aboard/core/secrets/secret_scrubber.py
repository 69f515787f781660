"""Removes secrets from text: keys and passwords by their shape; homes, users and addresses on request.

Secrets that a run knows by name are masked before they reach a disk; this finds those that nobody named.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from aboard.core.secrets.private_keys import Span
from aboard.core.secrets.secret_names import MASK
from aboard.core.secrets.secret_patterns import SecretFinder, is_secret_value

_USER = "[user]"
_SHORTEST_USER = 3
_HOME = re.compile(
    r"(?P<base>/(?:home|Users|data/home|scratch/users|gpfs/home)/)(?P<user>[A-Za-z0-9_.-]+)|/root(?=/|\b)"
)
_HOME_START = re.compile(rb"/(?:home/|[uU]sers/|root)")
_ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b|(?<![\w:])(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}(?![\w:])")


class SecretScrubber:
    """Scrubs one bundle: the same address always gets the same replacement. `removed` counts by kind.

    Replacements are still addresses, so that rules can parse them; 198.18.0.0/15 is reserved for benchmarks (RFC
    2544).
    """

    def __init__(self, *, users: Iterable[str] = (), hide_addresses: bool = False) -> None:
        self.removed: Counter[str] = Counter()
        self._finder = SecretFinder()
        self._hide_addresses = hide_addresses
        self._addresses: dict[str, str] = {}
        self._known = sorted(
            {user for user in users if len(user) >= _SHORTEST_USER and user != "root"}, key=len, reverse=True
        )
        self._people = (_HOME_START, *(re.compile(re.escape(_encode(user))) for user in self._known))
        self._users = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, self._known))})(?![\w-])")

    def text(self, text: str) -> str:
        return self.pieces([text])[0]

    def pieces(self, pieces: Sequence[str], *, cut: bool = False) -> list[str]:
        """Scrubs consecutive pieces of one stream, with their line ends; a secret may span them.

        `cut`: the beginning of the stream is missing, and may be the beginning of a key.
        """
        data = _encode("".join(pieces))
        spans = self._finder.find(data, cut=cut)
        self.removed["secrets"] += len(spans)
        masked = _mask_pieces(pieces, spans, MASK)
        if self._hide_addresses:
            return [self._hide_people(piece) for piece in masked]
        places = [found.start() for pattern in self._people for found in pattern.finditer(data)]
        if places:
            ends = _list_ends(pieces)
            for number in {bisect_right(ends, place) for place in places}:
                masked[number] = self._hide_people(masked[number])
        return masked

    def value(self, value: Any, name: str = "") -> Any:
        """Scrubs every string in a JSON value, including keys; masks a value under a secret name completely."""
        if isinstance(value, str):
            if name and is_secret_value(name.lstrip("-"), value, typed=name.startswith("-")):
                self.removed["secrets"] += 1
                return MASK
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.value(each, str(key)) for key, each in value.items()}
        if isinstance(value, list):
            # In an argv, an option's name precedes its value.
            names = [name, *(each if isinstance(each, str) and each.startswith("-") else name for each in value)]
            return [self.value(each, before) for each, before in zip(value, names, strict=False)]
        return value

    def _hide_people(self, text: str) -> str:
        text = _HOME.sub(self._home, text)
        if self._known:
            text, count = self._users.subn(_USER, text)
            self.removed["user names"] += count
        return _ADDRESS.sub(self._address, text) if self._hide_addresses else text

    def _home(self, found: re.Match[str]) -> str:
        if found["user"] == _USER:
            return found[0]
        self.removed["home directories"] += 1
        return f"{found['base']}{_USER}" if found["base"] else f"/home/{_USER}"

    def _address(self, found: re.Match[str]) -> str:
        if found[0].startswith("127.") or found[0] in ("0.0.0.0", "::1"):  # noqa: S104 - text, not a bind
            return found[0]
        self.removed["addresses"] += 1
        number = len(self._addresses) + 1
        return self._addresses.setdefault(found[0], f"198.{18 + (number >> 16 & 1)}.{number >> 8 & 255}.{number & 255}")


def mask_secrets(text: str, mask: str = MASK) -> str:
    """The text without secrets; homes, users and addresses stay."""
    return _mask_pieces([text], SecretFinder().find(_encode(text)), mask)[0]


def mask_words(words: Sequence[str], mask: str = MASK) -> list[str]:
    """The same for the words of a command: also the values that follow the names of secret options."""
    spaced = [f"{word} " for word in words]
    spans = SecretFinder().find(_encode("".join(spaced)))
    hidden = [word.removesuffix(" ") for word in _mask_pieces(spaced, spans, mask)]
    for place, (option, value) in enumerate(pairwise(words), 1):
        if option.startswith("-") and "=" not in option and is_secret_value(option.lstrip("-"), value, typed=True):
            hidden[place] = mask
    return hidden


def _mask_pieces(pieces: Sequence[str], spans: Sequence[Span], mask: str) -> list[str]:
    """Each piece with a mask for every part of a secret in it; `spans` count bytes of the joined pieces."""
    masked = list(pieces)
    if not spans:
        return masked
    ends = _list_ends(pieces)
    cuts: dict[int, list[Span]] = {}
    for start, stop in spans:
        number = bisect_right(ends, start)
        while number < len(ends) and (offset := ends[number - 1] if number else 0) < stop:
            cuts.setdefault(number, []).append((max(start - offset, 0), min(stop, ends[number]) - offset))
            number += 1
    for number, own in cuts.items():
        data = _encode(pieces[number])
        kept, at = [], 0
        for start, stop in own:
            # Line ends stay where they are.
            lines = data[start:stop].split(b"\n")
            kept += [data[at:start], b"\n".join(mask.encode() if line.strip() else line for line in lines)]
            at = stop
        # A very long secret may be cut within a character.
        masked[number] = b"".join([*kept, data[at:]]).decode("utf-8", "replace")
    return masked


def _list_ends(pieces: Sequence[str]) -> list[int]:
    """Where each piece ends in the bytes of the joined pieces."""
    return list(accumulate([len(piece) if piece.isascii() else len(_encode(piece)) for piece in pieces]))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
