"""Removes secrets from text: keys and passwords by their shape; homes, users and addresses on request.

Secrets that a run knows by name are masked before they reach a disk; this finds those that nobody named.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from aboard.core.text.secret_names import is_secret

MASK = "[secret]"
_USER = "[user]"
_SHORTEST_USER = 3
# Patterns that are a secret anywhere; if a pattern has a group, only the group is.
_SHAPES = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
    re.compile(
        r"(?i)\b(?:authorization|proxy-authorization|x-api-key)[\"']?\s*[:=]\s*[\"']?((?:bearer|basic|token)\s+[^\s\"',]+|[^\s\"',]{6,})"
    ),
    re.compile(r"(?i)\bbearer\s+([A-Za-z0-9._~+/=-]{8,})"),
    # A password in a URL of a database, a proxy, or a git remote.
    re.compile(r"://([^\s/@:\"']*:[^\s/@\"']+)@"),
    re.compile(r"\bhf_[A-Za-z0-9]{16,}"),
    re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\b(?:AKIA|ASIA|AROA)[0-9A-Z]{16}\b"),
    re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}|\bglpat-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}|\bAIza[0-9A-Za-z_-]{35}|\bnvapi-[A-Za-z0-9_-]{20,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    # Forty hexadecimal digits are a commit hash, unless a tracker's name precedes them.
    re.compile(r"(?i)\b(?:wandb|api[_-]?key|comet|neptune)\b[^\n]{0,40}?\b([0-9a-f]{40})\b"),
    re.compile(r"(?i)\baws_secret_access_key\b\W{1,6}([A-Za-z0-9/+=]{30,})"),
)
_NAMES = (
    r"token|secrets?|passwords?|passwd|passphrase|pwd|api[_-]?keys?|access[_-]?keys?|private[_-]?key|credentials?|auth"
)
# NAME=value, "name": "value", --name value. Only secret names match: in `Error: token=x` the first colon must not.
_ASSIGNED = re.compile(
    rf"(?i)(?<![\w.-])(?P<name>-{{0,2}}[a-z0-9_.-]{{0,60}}?(?:{_NAMES}))"
    r"(?P<sign>[\"']?\s{0,2}[=:]\s{0,2}|\s+)(?P<quote>[\"']?)(?P<value>[^\s\"',;]{6,})"
)
_SECRET_NAME = re.compile(rf"(?i)(?:{_NAMES})$")
_PLAIN_VALUE = re.compile(r"(?i)[\d.,:e+-]+|true|false|none|null|\[secret\].*|<.*>")
_HOME = re.compile(
    r"(?P<base>/(?:home|Users|data/home|scratch/users|gpfs/home)/)(?P<user>[A-Za-z0-9_.-]+)|/root(?=/|\b)"
)
_ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b|(?<![\w:])(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}(?![\w:])")


class SecretScrubber:
    """Scrubs one bundle: the same address always gets the same replacement. `removed` counts by kind.

    Replacements are still addresses, so that rules can parse them; 198.18.0.0/15 is reserved for benchmarks (RFC
    2544).
    """

    def __init__(self, *, users: Iterable[str] = (), hide_addresses: bool = False) -> None:
        self.removed: Counter[str] = Counter()
        self._hide_addresses = hide_addresses
        self._addresses: dict[str, str] = {}
        known = sorted(
            {user for user in users if len(user) >= _SHORTEST_USER and user != "root"}, key=len, reverse=True
        )
        self._users = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, known))})(?![\w-])") if known else None

    def text(self, text: str) -> str:
        for shape in _SHAPES:
            text = shape.sub(self._mask_match, text)
        text = _ASSIGNED.sub(self._mask_assignment, text)
        text = _HOME.sub(self._home, text)
        if self._users is not None:
            text, count = self._users.subn(_USER, text)
            self.removed["user names"] += count
        return _ADDRESS.sub(self._address, text) if self._hide_addresses else text

    def value(self, value: Any, name: str = "") -> Any:
        """Scrubs every string in a JSON value, including keys; masks a value under a secret name completely."""
        if isinstance(value, str):
            if value and name and is_secret(name) and not _PLAIN_VALUE.fullmatch(value) and _SECRET_NAME.search(name):
                self.removed["secrets"] += 1
                return MASK
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.value(each, str(key)) for key, each in value.items()}
        if isinstance(value, list):
            # In an argv, an option's name precedes its value.
            names = [name, *(each if isinstance(each, str) and each.startswith("-") else name for each in value)]
            return [self.value(each, before.lstrip("-")) for each, before in zip(value, names, strict=False)]
        return value

    def _mask_match(self, found: re.Match[str]) -> str:
        secret = found[1] if found.re.groups else found[0]
        if secret.startswith(MASK):
            return found[0]
        self.removed["secrets"] += 1
        return found[0].replace(secret, MASK)

    def _mask_assignment(self, found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        blank = found["sign"].isspace()
        if _PLAIN_VALUE.fullmatch(value) or (blank and not name.startswith("-")):
            return found[0]
        self.removed["secrets"] += 1
        return f"{name}{found['sign']}{found['quote']}{MASK}"

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
