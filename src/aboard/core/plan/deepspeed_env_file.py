"""Parses DeepSpeed's `.deepspeed_env`: one KEY=VALUE per line.

DeepSpeed splits each line at its first `=` and strips both sides; a blank line or a comment crashes it. Here they are
skipped, a leading `export` is allowed, and one pair of quotes around a value is removed, as the remote shell does for
DeepSpeed. The last value of a repeated name wins, as in DeepSpeed.
"""

import re

from aboard.core.cluster.hostfile import MAX_PROBLEMS
from aboard.core.text.input_text import find_env_name_error
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import configuration

_LINE_END = re.compile(r"\r\n|\r|\n")
_EXPORT = re.compile(r"export\s+(?=\S)")
_QUOTED = re.compile(r"\"([^\"]*)\"|'([^']*)'")


def parse_env_file(text: str, *, where: str = ".deepspeed_env") -> dict[str, str]:
    """The variables of an env file; reports every wrong line, up to a limit, with its number."""
    env: dict[str, str] = {}
    problems: list[Problem] = []
    for number, line in enumerate(_LINE_END.split(text), start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        name, equals, value = _EXPORT.sub("", entry, count=1).partition("=")
        seen = find_env_name_error(name.strip()) if equals else f"'{_mask_entry(entry)}' has no '='"
        if "\0" in value:
            seen = f"the value of {escape_text(name.strip())} contains a NUL byte, which no variable can contain"
        if seen:
            problems.append(Problem(where=f"{where}:{number}", seen=seen, fix=configuration.ENVFILE.fix()))
            if len(problems) == MAX_PROBLEMS:
                break
            continue
        env[name.strip()] = _strip_quotes(value.strip())
    if problems:
        raise InputError(configuration.ENVFILE, problems)
    return env


def _mask_entry(entry: str) -> str:
    """The start of a wrong line: the whole line might be a token, which no message may repeat."""
    return escape_text(entry if len(entry) <= 12 else entry[:8] + "…")  # noqa: PLR2004


def _strip_quotes(value: str) -> str:
    match = _QUOTED.fullmatch(value)
    return value if not match else match[1] or match[2] or ""
