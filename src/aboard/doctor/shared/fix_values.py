"""Values for the blanks of fixes: lists of nodes behind a command, and values in lines of aboard.yaml.

Adapters, interfaces and paths come from nodes, so quoting keeps each a single YAML value whatever it contains.
"""

import re
from collections.abc import Iterable

from aboard.core.text.input_text import format_list
from aboard.diagnoses import Shell, format_shell

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")


def join_quoted_names(names: Iterable[str]) -> Shell:
    """`n1, n2 and n3`, for a sentence: each name is quoted."""
    return Shell(format_list([format_shell("{name}", name=name) for name in names]))


def quote_yaml(value: str) -> str:
    """One value of YAML between quotes."""
    doubled = value.replace("'", "''")
    return f"'{doubled}'"


def format_yaml_value(value: str) -> str:
    """One value of YAML, between quotes where it needs them."""
    return value if _PLAIN.fullmatch(value) else quote_yaml(value)
