"""Recognises environment variables with secrets by their names."""

import re
from collections.abc import Iterable

# Names with one of these words, in capitals. Nodes get them with the question, so that there is one list.
SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH")
_SECRET = re.compile("|".join(SECRET_WORDS), re.IGNORECASE)
# Names that match but hold no secret.
_PLAIN = frozenset({"TOKENIZERS_PARALLELISM"})
# Words of all rules in `secret_patterns`, and what tokens look like: compiling those rules takes 50 ms.
_HINTS = (
    *(
        "pass",
        "secret",
        "token",
        "key",
        "cred",
        "auth",
        "pwd",
        "phrase",
        "mnemonic",
        "sig",
        "cookie",
        "login",
        "private",
        "hook",
    ),
    *(
        "@",
        "%40",
        "identified",
        "bearer",
        "//0",
        "bot",
        ":5432:",
        "sudo",
        "stdin",
        "redis",
        "mysql",
        "mariadb",
        "mongo",
        "ldap",
    ),
    *(
        "openssl",
        "7z",
        "curl",
        "wget",
        "htpasswd",
        "influx",
        "ipmitool",
        "sess",
        "jwt",
        "dsn",
        "sid",
        "dp.",
        "hv",
        "pat-",
    ),
)
_TOKEN = re.compile(
    r"(?=[\w-]{0,32}[A-Z])(?=[\w-]{0,32}[0-9])[\w-]{16}|[0-9a-f]{32}|[a-z0-9]{2,8}[_-][0-9a-z]{16}|[A-Z0-9+/=]{20}"
)


def may_hold_secret(text: str) -> bool:
    """Whether it is worth looking for secrets in a short text."""
    low = text.lower()
    return any(hint in low for hint in _HINTS) or _TOKEN.search(text) is not None


def is_secret(name: str) -> bool:
    return name not in _PLAIN and _SECRET.search(name) is not None


def list_secret_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names whose values must not appear in any log, file or message."""
    return tuple(name for name in names if is_secret(name))
