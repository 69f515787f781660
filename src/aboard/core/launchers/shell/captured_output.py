"""What known commands print, for `$( … )`."""

import re
from collections.abc import Callable, Sequence

from aboard.core.cluster.node_sets import expand_node_set
from aboard.core.launchers.shell.variables import find_unknown, mark_unknown
from aboard.diagnoses import InputError
from aboard.lazy_dataclass import dataclass

_SED_LINE = re.compile(r"(\d+)p")
_MOST = 65_536


@dataclass(frozen=True, kw_only=True)
class JobNodes:
    """The names of a job's nodes, in Slurm's order; before the job starts, each is an unknown value.

    `written` is what SLURM_JOB_NODELIST holds, `here` the host that runs the script.
    """

    names: tuple[str, ...]
    written: str
    here: str


def predict_output(words: Sequence[str], given: str, nodes: JobNodes, cwd: str) -> str:
    """The output of a command whose input is `given`; an unknown value for a command that isn't known."""
    name, args = "".join(words[:1]).rpartition("/")[2], list(words[1:])
    filters: dict[str, Callable[[list[str], str], str | None]] = {
        "head": _take_first,
        "tail": _take_last,
        "sed": _take_line,
        "wc": _count_lines,
        "tr": _translate,
        "sort": lambda args, text: None if args else "".join(sorted(text.splitlines(keepends=True))),
        "paste": lambda args, text: (
            ",".join(text.splitlines()) + "\n" if args in (["-sd,"], ["-sd", ","], ["-s", "-d,"]) else None
        ),
    }
    printed: str | None = None
    if (unknown := find_unknown(given)) is not None and unknown.startswith("("):
        printed = None
    elif name in {"echo", "printf"}:
        printed = format_echo(name, args)
    elif name == "scontrol" and args[:2] in (["show", "hostnames"], ["show", "hostname"]):
        printed = _list_names(args[2:], nodes)
    elif name == "hostname" and args in ([], ["-s"], ["--short"]):
        printed = nodes.here + "\n"
    elif name == "pwd":
        printed = cwd + "\n"
    elif name == "seq" and args and all(arg.isdecimal() for arg in args):
        printed = _format_sequence([int(arg) for arg in args])
    elif name in {"basename", "dirname"} and len(args) == 1 and find_unknown(args[0]) is None:
        head, _, tail = args[0].rstrip("/").rpartition("/")
        printed = (tail if name == "basename" else head or ("/" if args[0].startswith("/") else ".")) + "\n"
    elif name == "cat" and not args:
        printed = given
    elif name in filters:
        printed = filters[name](args, given)
    return mark_unknown(f"({' '.join(words[:2])})") if printed is None else printed


def format_echo(name: str, args: list[str]) -> str | None:
    """The output of `echo`, or of `printf` with a plain text."""
    if name == "echo":
        ends = args[:1] != ["-n"]
        return " ".join(arg for arg in (args if ends else args[1:]) if arg != "-e") + ("\n" if ends else "")
    template = args[0] if args else ""
    if "\\" in template.replace("\\n", "") or "%" in template.replace("%s", ""):
        return None
    count = template.count("%s")
    if count > 1 or (args[1:] and not count):
        return None
    template = template.replace("\\n", "\n")
    return "".join(template.replace("%s", arg) for arg in args[1:]) if count else template


def _list_names(args: list[str], nodes: JobNodes) -> str | None:
    if not args or args == [nodes.written]:
        return "".join(f"{name}\n" for name in nodes.names)
    try:
        return "".join(f"{name}\n" for name in expand_node_set(args[0]))
    except InputError:
        return None


def _take_first(args: list[str], text: str) -> str | None:
    count = _read_count(args)
    return None if count is None else "".join(text.splitlines(keepends=True)[:count])


def _take_last(args: list[str], text: str) -> str | None:
    joined = "".join(args)
    if match := re.fullmatch(r"-n\+(\d+)", joined):
        return "".join(text.splitlines(keepends=True)[max(0, int(match[1]) - 1) :])
    count = _read_count(args)
    return None if count is None else "".join(text.splitlines(keepends=True)[-count or len(text) :])


def _take_line(args: list[str], text: str) -> str | None:
    match = _SED_LINE.fullmatch("".join(args[1:])) if args[:1] == ["-n"] else None
    return None if match is None else "".join(text.splitlines(keepends=True)[int(match[1]) - 1 : int(match[1])])


def _count_lines(args: list[str], text: str) -> str | None:
    found = {"-l": text.count("\n"), "-w": len(text.split())}.get(" ".join(args))
    return None if found is None else f"{found}\n"


def _translate(args: list[str], text: str) -> str | None:
    if args == ["-d", "\\n"]:
        return text.replace("\n", "")
    if len(args) == 2 and args[0] in {"\\n", " ", ","} and args[1] in {"\\n", " ", ",", ":"}:  # noqa: PLR2004
        return text.replace("\n" if args[0] == "\\n" else args[0], "\n" if args[1] == "\\n" else args[1])
    return None


def _read_count(args: list[str]) -> int | None:
    match = re.fullmatch(r"-(?:n)?(\d{1,6})|--lines=(\d{1,6})", "".join(args))
    return 10 if not args else int(match[1] or match[2]) if match else None


def _format_sequence(numbers: list[int]) -> str | None:
    """`seq LAST`, `seq FIRST LAST` or `seq FIRST STEP LAST`."""
    first, last = numbers[0] if numbers[1:] else 1, numbers[-1]
    step = numbers[1] if numbers[2:] else 1
    if step < 1 or numbers[3:] or last - first > _MOST:
        return None
    return "".join(f"{number}\n" for number in range(first, last + 1, step))
