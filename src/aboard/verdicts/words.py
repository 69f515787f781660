"""What a death says: from an exception, an exit code or a signal to a code, a sentence and what to type."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from aboard.core.run import Child, Raised
from aboard.core.words import visible

_SHOWN = 300
# Nodes are Linux, whatever the head is: signal(7).
_NAMES = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL"}
_NAMES |= {10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM"}
_SIGNALS = {
    9: (
        "The kernel does that to the biggest process when memory is out, or somebody's hand did.",
        "sudo dmesg -T | grep -i 'killed process'    # on {node}: was it out of memory?",
    ),
    7: (
        "A page of memory could not be had: mostly /dev/shm is full.",
        "df -h /dev/shm    # on {node}",
    ),
    11: (
        "A bug in native code: a wheel that does not fit its CUDA or torch is the usual one.",
        "aboard check --only software",
    ),
    6: (
        "Native code gave up: NCCL's watchdog, a failed assertion in C++.",
        "",
    ),
}
# What a program says last, why, and what to type; the first that fits.
_KNOWN = (
    (
        r"ModuleNotFoundError: No module named '([^']+)'",
        "The Python that ranks get on this node has no such module.",
        "{python} -m pip install {0}    # on {node}",
    ),
    (
        r"can't open file '?([^':]+)",
        "The script is not at this path on this node.",
        "ls -l {0}    # on {node}; set `workdir:` in aboard.yaml, or copy it there",
    ),
    (
        r"CUDA out of memory|OutOfMemoryError",
        "The GPU's memory is too small for what was asked of it.",
        "nvidia-smi    # on {node}: does something else use the GPU? else a smaller batch",
    ),
    (
        r"EADDRINUSE|[Aa]ddress already in use",
        "Another process took the port of the rendezvous.",
        "sudo ss -ltnp    # on {node}: who has it?",
    ),
    (
        r"No space left on device",
        "A disk of this node is full.",
        "df -h    # on {node}",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Told:
    """What is said of one death."""

    code: str
    seen: str
    why: str
    fix: str


def told_of(child: Child, tail: Sequence[str]) -> Told:
    """By what is surest: that it never started, its own exception, the signal, the last words on stderr."""
    if child.state == "failed":
        known, fix = _known(child.why, child)
        why = known or "The node could not start it: the directory or the program is not there, or may not be used."
        seen = f"was not started: {_clear(child.why)}"
        return Told(code="run-not-started", seen=seen, why=why, fix=_start_fix(child) or fix)
    if child.raised is not None:
        if child.raised.type.startswith("aboard."):
            return _our_own(child.raised)
        text = f"{child.raised.type}: {child.raised.message.strip()}"
        why, fix = _known(text, child)
        return Told(code="run-raised", seen=f"raised {_clear(text)}", why=why or "Its own code gave up.", fix=fix)
    code = child.code or 0
    if code < 0:
        return _by_signal(child, -code)
    last = next((line for line in reversed(tail) if line.strip()), "")
    why, fix = _known("\n".join(tail), child)
    said = f': "{_clear(last)}"' if last else ", and said nothing"
    return Told(
        code="run-exited", seen=f"ended with exit code {code}{said}", why=why or "Its own code gave up.", fix=fix
    )


def _our_own(raised: Raised) -> Told:
    """An error of our own trainer has its name and what to type; its rank writes that behind the trace."""
    fix = raised.trace.rpartition("\nfix: ")[2].strip() if "\nfix: " in raised.trace else ""
    seen = f"could not go on: {_clear(raised.message)}"
    return Told(code="run-raised", seen=seen, why="The trainer stopped rather than to go on wrongly.", fix=fix)


def _by_signal(child: Child, number: int) -> Told:
    name = _NAMES.get(number, f"signal {number}")
    why, fix = _SIGNALS.get(number, ("Somebody or something sent it that signal.", ""))
    return Told(code="run-killed", seen=f"was killed by {name}", why=why, fix=fix.format(node=child.node))


def _known(text: str, child: Child) -> tuple[str, str]:
    for pattern, why, fix in _KNOWN:
        found = re.search(pattern, text)
        if found:
            groups = [visible(group) for group in found.groups()]
            return why, fix.format(*groups, node=child.node, python="python3")
    return "", ""


def _start_fix(child: Child) -> str:
    place = re.match(r"can't enter (\S+):", child.why)
    if place:
        return f"mkdir -p {place[1]}    # on {child.node}; or set `workdir:` in aboard.yaml"
    program = re.match(r"can't start (\S+):", child.why)
    return f"command -v {program[1]}    # on {child.node}" if program else ""


def _clear(text: str) -> str:
    """The first lines of what was said, on one line."""
    return visible(" ".join(text.split()), _SHOWN)
