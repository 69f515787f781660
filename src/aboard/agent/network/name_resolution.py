"""Resolves several names at once: one that a dead name server never answers must not delay the rest."""

from __future__ import annotations

import _thread
import os
import socket

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from typing import Any, Union

    Found = Union[list[tuple[int, Any]], str]

RESOLVERS = 16
TIMED_OUT = "timed out"


class NameResolver:
    """Resolves in threads, since getaddrinfo blocks; `wake` becomes readable when a result arrives."""

    def __init__(self, names: set[str]) -> None:
        self._names = sorted(names)
        self._left = list(self._names)
        self._found: dict[str, Found] = {}
        self.wake, self._waker = os.pipe()
        for _ in range(min(RESOLVERS, len(names))):
            _thread.start_new_thread(self._resolve, ())

    def find(self, name: str) -> Found | None:
        """Families and addresses, or why there are none; None while pending."""
        return self._found.get(name)

    @property
    def open(self) -> bool:
        return len(self._found) < len(self._names)

    def told(self) -> dict[str, list[str] | str]:
        """The addresses of each name, or why there are none."""
        return {name: _format_addresses(self._found.get(name)) for name in self._names}

    def _resolve(self) -> None:
        while True:
            try:
                name = self._left.pop()
            except IndexError:
                return
            try:
                # As bytes: to encode a str, Python would import its tables for international names first.
                addresses = socket.getaddrinfo(name.encode(), 0, 0, socket.SOCK_STREAM)
                self._found[name] = [(family, to) for family, _, _, _, to in addresses]
            except (OSError, UnicodeError) as error:
                self._found[name] = str(getattr(error, "strerror", None) or error)
            os.write(self._waker, b".")


def _format_addresses(addresses: Found | None) -> list[str] | str:
    if addresses is None:
        return TIMED_OUT
    return addresses if isinstance(addresses, str) else [to[0] for _family, to in addresses]
