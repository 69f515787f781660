"""What fills the blanks of fixes: sets of nodes behind a command, and values in lines of aboard.yaml.

Adapters, interfaces and paths are what a node says: in a line of YAML each stays one value, whatever it holds.
"""

import re
from collections.abc import Iterable

from aboard.checks.listed import listed
from aboard.diagnoses import Shell, shell

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")


def named(names: Iterable[str]) -> Shell:
    """`n1, n2 and n3`, for a sentence: each name is quoted."""
    return Shell(listed(_words(names)))


def yaml_text(value: str) -> str:
    """One value of YAML between quotes."""
    doubled = value.replace("'", "''")
    return f"'{doubled}'"


def yaml_word(value: str) -> str:
    """One value of YAML, between quotes where it needs them."""
    return value if _PLAIN.fullmatch(value) else yaml_text(value)


def _words(names: Iterable[str]) -> list[str]:
    return [shell("{name}", name=name) for name in names]
