"""Recognises secrets by the names of their variables, and masks values that are known to be secret."""

import re
from collections.abc import Callable, Iterable, Mapping

# What stands for a secret in files and messages that leave this machine, and on the user's own screen. The agent, which
# is shipped alone, has its own copy of the first.
MASK, HIDDEN = "[secret]", "…hidden"
# A shorter value would mask ordinary words and numbers, and is hardly a secret.
SHORTEST_SECRET = 6
# Names with one of these words, in capitals. Nodes get them with the question, so that there is one list.
SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH")
# Names that match but hold no secret.
_PLAIN = frozenset({"TOKENIZERS_PARALLELISM"})
_SECRET = re.compile("|".join(SECRET_WORDS), re.IGNORECASE)
# Words of all rules in `secret_patterns`, and what tokens look like: compiling those rules takes 50 ms.
_HINTS = re.compile(
    r"pass|secret|token|key|cred|auth|pwd|phrase|mnemonic|sig|cookie|login|private|hook|@|%40|identified|bearer|//0|bot"
    r"|:5432:|sudo|stdin|redis|mysql|mariadb|mongo|ldap|openssl|7z|curl|wget|htpasswd|influx|ipmitool|sess|jwt|dsn|sid"
    r"|dp\.|hv|pat-"
)
_TOKEN = re.compile(
    r"(?=[\w-]{0,32}[A-Z])(?=[\w-]{0,32}[0-9])[\w-]{16}|[0-9a-f]{32}|[a-z0-9]{2,8}[_-][0-9a-z]{16}|[A-Z0-9+/=]{20}"
)


def may_hold_secret(text: str) -> bool:
    """Whether it is worth looking for secrets in a short text."""
    return _HINTS.search(text.lower()) is not None or _TOKEN.search(text) is not None


def is_secret(name: str) -> bool:
    return name not in _PLAIN and _SECRET.search(name) is not None


def list_secret_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names whose values must not appear in any log, file or message."""
    return tuple(name for name in names if is_secret(name))


def build_value_mask(masks: Mapping[str, str]) -> Callable[[str], str]:
    """A function that replaces each of these values with its mask, wherever it occurs in a text."""
    if not masks:
        return str
    # Longest first: of a secret that begins with another, no tail may remain.
    values = re.compile("|".join(map(re.escape, sorted(masks, key=len, reverse=True))))
    return lambda text: values.sub(lambda found: masks[found[0]], text)
