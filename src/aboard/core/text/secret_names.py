"""Recognises environment variables with secrets by their names."""

import re
from collections.abc import Iterable

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
# Names that match but hold no secret.
_PLAIN = frozenset({"TOKENIZERS_PARALLELISM"})


def is_secret(name: str) -> bool:
    return name not in _PLAIN and _SECRET.search(name) is not None


def list_secret_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names whose values must not appear in any log, file or message."""
    return tuple(name for name in names if is_secret(name))
