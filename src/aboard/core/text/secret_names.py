"""Which environment variables hold secrets, by their names."""

import re
from collections.abc import Iterable

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
# Names that look like it and hold none.
_PLAIN = frozenset({"TOKENIZERS_PARALLELISM"})


def is_secret(name: str) -> bool:
    return name not in _PLAIN and _SECRET.search(name) is not None


def list_secret_names(names: Iterable[str]) -> tuple[str, ...]:
    """Those whose values may appear in no log, file or message."""
    return tuple(name for name in names if is_secret(name))
