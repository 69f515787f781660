"""DeepSpeed's `.deepspeed_env`: one KEY=VALUE a line.

DeepSpeed splits each line at its first `=` and strips both sides; a blank line or a comment ends it with a
traceback. Here they are skipped, a leading `export` is allowed, and one pair of quotes around a value is taken off,
as the remote shell does for DeepSpeed. A name given twice has its last value, as in DeepSpeed.
"""

import re

from aboard.core.words import env_name_trouble, visible
from aboard.diagnoses import InputError, Problem, configuration

_LINE_END = re.compile(r"\r\n|\r|\n")
_EXPORT = re.compile(r"export\s+(?=\S)")
_QUOTED = re.compile(r"\"([^\"]*)\"|'([^']*)'")


def read_envfile(text: str, *, where: str = ".deepspeed_env") -> dict[str, str]:
    """The variables of an env file; every wrong line is reported with its number."""
    env: dict[str, str] = {}
    problems: list[Problem] = []
    for number, line in enumerate(_LINE_END.split(text), start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        name, equals, value = _EXPORT.sub("", entry, count=1).partition("=")
        seen = env_name_trouble(name.strip()) if equals else f"'{_hidden(entry)}' has no '='"
        if "\0" in value:
            seen = f"the value of {visible(name.strip())} holds a NUL byte, which no environment can carry"
        if seen:
            problems.append(Problem(where=f"{where}:{number}", seen=seen, fix=configuration.ENVFILE.fix()))
            continue
        env[name.strip()] = _unquoted(value.strip())
    if problems:
        raise InputError(configuration.ENVFILE, problems)
    return env


def _hidden(entry: str) -> str:
    """The start of a wrong line: the whole might be a token that a message must not repeat."""
    return visible(entry if len(entry) <= 12 else entry[:8] + "…")  # noqa: PLR2004


def _unquoted(value: str) -> str:
    match = _QUOTED.fullmatch(value)
    return value if not match else match[1] or match[2] or ""
