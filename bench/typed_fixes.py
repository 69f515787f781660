"""Types a finding's fix as a person would: each line as printed, where its comment says.

    COMMAND    # on NODES; why          on those nodes
    COMMAND    # here; why              on the head, like every line without a place
    KEY: VALUE    # in aboard.yaml, under cluster:; why      into that file on the head, in place of what KEY was
    KEY: VALUE    # in aboard.yaml, for NODES; why           the same, below the nodes' own names
    # advice                            is not typed

Commands run in bash as the ordinary user. Practice hosts have no sudo: root runs a line that contains `sudo`, in a
shell in which that word runs the rest. Lines are not changed. Exit codes do not count, since some lines only inspect;
what counts is that the next check passes, or that the run continues.
"""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from aboard.core.cluster.node_sets import expand_node_set
from aboard.sandbox import Host, Sandbox

CONFIG = "aboard.yaml"
_COMMENT = "    # "
_SUDO = 'sudo() { "$@"; }\n'
_LINE_SECONDS = 60
# Not an exit code of timeout(1), which some lines use; and that of ssh(1).
LATE, OFF = 142, 255


@dataclass(frozen=True, kw_only=True)
class Typed:
    """A typed line: where, its exit code and its output."""

    where: str
    line: str
    code: int
    output: str


def type_fix(box: Sandbox, fix: str, folder: str | None = None) -> list[Typed]:
    """Types a fix as `aboard check --json` printed it; on the head in this folder, or in the home directory."""
    return [typed for line in fix.splitlines() for typed in _type_line(box, line, folder)]


def write_config(head: Host, whose: str, line: str, folder: str | None = None) -> None:
    """Sets a line of aboard.yaml `under cluster:` or `for NODES`, replacing one with the same key, and allows it."""
    text = head.run(["cat", CONFIG], cwd=folder).stdout
    for heading in (
        ["cluster:"] if whose == "under cluster:" else [f"- name: {name}" for name in expand_node_set(whose[4:])]
    ):
        text = _replace_setting(text.splitlines(), heading, line)
    head.run(["sh", "-c", f"cat > {CONFIG} && aboard allow"], input=text, cwd=folder)


def _type_line(box: Sandbox, line: str, folder: str | None) -> Iterator[Typed]:
    command, _, comment = line.partition(_COMMENT)
    place = comment.partition(";")[0].strip()
    if not command.strip() or command.startswith("#"):
        return
    if place.startswith("in aboard.yaml, "):
        write_config(box.head, place.removeprefix("in aboard.yaml, "), command, folder)
        yield Typed(where=CONFIG, line=line, code=0, output="")
        return
    for name in expand_node_set(place[3:]) if place.startswith("on ") else ["head"]:
        root = re.search(r"\bsudo\b", command) is not None
        argv = ["bash", "-c", (_SUDO if root else "") + command]
        host, cwd = box.host(name), folder if name == "head" else None
        if not host.on:
            yield Typed(where=name, line=line, code=OFF, output=f"{name} is off")
            continue
        try:
            done = host.run(argv, root=root, timeout=_LINE_SECONDS, cwd=cwd)
            yield Typed(where=name, line=line, code=done.returncode, output=(done.stdout + done.stderr).strip())
        except subprocess.TimeoutExpired:
            yield Typed(where=name, line=line, code=LATE, output=f"still running after {_LINE_SECONDS} s")


def _replace_setting(lines: list[str], heading: str, line: str) -> str:
    at = next(number for number, each in enumerate(lines) if each.strip() == heading)
    inside = _count_indent(lines[at]) + 2
    end = next((number for number in range(at + 1, len(lines)) if _count_indent(lines[number]) < inside), len(lines))
    key = f"{' ' * inside}{line.partition(':')[0]}:"
    kept = [each for each in lines[at + 1 : end] if not each.startswith(key)]
    return "".join(f"{each}\n" for each in [*lines[: at + 1], " " * inside + line, *kept, *lines[end:]])


def _count_indent(line: str) -> int:
    return len(line) - len(line.lstrip())
