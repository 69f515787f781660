"""The nodes that this machine knows, for `aboard init` and completion: from arguments, a hostfile or ssh_config."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aboard.config.input_files import DEFAULT_FILE, FoundFile, read_text
from aboard.config.node_entries import NodeEntry, parse_hostfile_entries, parse_node_names
from aboard.core.cluster.node_sets import expand_logins
from aboard.core.text.byte_sizes import KIB
from aboard.core.text.input_text import find_host_error
from aboard.diagnoses import NO_FIX, InputError
from aboard.diagnoses.usage import commands, configuration
from aboard.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Where Kubernetes operators and DeepSpeed put the hostfile of a job.
JOB_HOSTFILE = "/job/hostfile"
_KEYWORD = re.compile(r"(\w+)(?:\s*=\s*|\s+)(.*)")
_PATTERN = re.compile(r"[*?!]")
# Hosts of git, which run no training.
_FORGES = ("github.com", "gitlab.com", "bitbucket.org", "ssh.dev.azure.com", "codeberg.org", "hf.co")
_MOST_INCLUDED = 64
# A larger file takes longer to parse than a person waits after TAB.
_MOST_COMPLETED = 64 * KIB


@dataclass(frozen=True, kw_only=True)
class FoundNodes:
    """The nodes, and where their names came from; `guessed` ones need the user's consent."""

    entries: tuple[NodeEntry, ...]
    source: str
    guessed: bool = False


def find_nodes(hosts: "Sequence[str]", hostfile: str | None, *, home: Path) -> FoundNodes:
    """The nodes of the arguments or the hostfile; with neither, of the first place that has any."""
    if hosts and hostfile is not None:
        raise _build_error("the nodes were given both as arguments and by --hostfile", "both")
    if hosts:
        return FoundNodes(entries=tuple(parse_node_names(hosts)), source="the command line")
    if hostfile is not None:
        return _read_hostfile(hostfile, shown=hostfile)
    for path, shown in (
        (JOB_HOSTFILE, JOB_HOSTFILE),
        (FoundFile("hostfile"), "hostfile"),
        (str(home / "hostfile"), "~/hostfile"),
    ):
        if Path(path).is_file():
            found = _read_hostfile(path, shown=shown)
            # A cloned repository may have a hostfile; names of nodes are harmless, other users are not.
            return replace(
                found, guessed=isinstance(path, FoundFile) and any("user" in each.settings for each in found.entries)
            )
    names = list_ssh_hosts(home / ".ssh")
    if not names:
        raise _build_error(
            f"no node was given, and there is no {JOB_HOSTFILE}, hostfile, ~/hostfile or host in ~/.ssh/config", "none"
        )
    return FoundNodes(entries=tuple(parse_node_names(names)), source="~/.ssh/config", guessed=True)


def list_known_names(home: Path) -> list[str]:
    """For completion: the nodes of ./aboard.yaml, which need no consent for that, or of the first other place."""
    if (file := Path(DEFAULT_FILE)).is_file() and file.stat().st_size <= _MOST_COMPLETED:
        from aboard.config.yaml_tree import convert_to_builtins, parse_tree  # noqa: PLC0415 - PyYAML is only for a file

        text = read_text(FoundFile(DEFAULT_FILE), fix=NO_FIX)
        match convert_to_builtins(parse_tree(text, file=DEFAULT_FILE)):
            case {"cluster": {"nodes": [*nodes]}}:
                texts = [node.get("name", "") if isinstance(node, dict) else node for node in nodes]
                return [login.name for text in texts for login in expand_logins(str(text).partition(" ")[0])]
    return [entry.name for entry in find_nodes((), None, home=home).entries]


def list_ssh_hosts(directory: Path) -> list[str]:
    """The hosts of ssh_config that are no patterns, git servers or jump hosts, in the order of the file."""
    blocks = list(_list_blocks(_list_lines(directory, "config")))
    jumps = {
        hop.rpartition("@")[2].partition(":")[0]
        for _names, words in blocks
        for hop in words.get("proxyjump", "").split(",")
    }
    found: dict[str, None] = {}
    for names, words in blocks:
        target = words.get("hostname", "").lower()
        if words.get("user") == "git" or target.endswith(_FORGES):
            continue
        found.update(
            (name, None)
            for name in names
            if name not in jumps and not name.lower().endswith(_FORGES) and find_host_error(name) is None
        )
    return list(found)


def _read_hostfile(path: str, *, shown: str) -> FoundNodes:
    text = read_text(path, fix=configuration.FILE.fix("own-hostfile"))
    return FoundNodes(entries=tuple(parse_hostfile_entries(text, path)), source=shown)


def _list_blocks(lines: "Iterable[tuple[str, str]]") -> "Iterator[tuple[list[str], dict[str, str]]]":
    """Each `Host` with its names that are no patterns, and its settings; the first of two settings counts."""
    names: list[str] = []
    words: dict[str, str] = {}
    for keyword, value in lines:
        if keyword in {"host", "match"}:
            yield names, words
            names = [name for name in _split_words(value) if not _PATTERN.search(name)] if keyword == "host" else []
            words = {}
        else:
            words.setdefault(keyword, value)
    yield names, words


def _list_lines(directory: Path, name: str, depth: int = 0) -> "Iterator[tuple[str, str]]":
    """The keywords, in lower case, and their values; included files are read in place."""
    path = directory / name
    if not path.is_file():
        return
    for line in read_text(str(path), fix=commands.INIT.fix("none")).splitlines():
        match = _KEYWORD.fullmatch(line.strip())
        if match is None:
            continue
        keyword, value = match[1].lower(), match[2]
        if keyword != "include":
            yield keyword, value
        elif depth == 0:
            for pattern in _split_words(value):
                for each in _expand_include(directory, pattern):
                    yield from _list_lines(directory, str(each), depth + 1)


def _expand_include(directory: Path, pattern: str) -> list[Path]:
    try:
        path = directory / Path(pattern).expanduser()
        return sorted(Path("/").glob(str(path.relative_to("/"))))[:_MOST_INCLUDED]
    except (OSError, RuntimeError, ValueError):  # an unknown user, or a pattern that nothing can match
        return []


def _split_words(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:  # an open quote
        return value.split()


def _build_error(seen: str, fix: str) -> InputError:
    return InputError.of(commands.INIT, "aboard init", seen, fix)
