"""What fills the blanks of fixes: sets of nodes behind a command, and values in lines of aboard.yaml.

Adapters, interfaces and paths are what a node says: in a line of YAML each stays one value, whatever it holds.
"""

import re
from collections.abc import Iterable

from aboard.checks.listed import listed
from aboard.core.nodeset import fold
from aboard.diagnoses import Shell, shell

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")


def where(names: Iterable[str]) -> Shell:
    """`n[1-3]`, for a remark behind a command: each name is quoted, and only the brackets are not."""
    return Shell(fold(_words(names)))


def named(names: Iterable[str]) -> Shell:
    """As `where`, for a sentence: `n1, n2 and n3`."""
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
