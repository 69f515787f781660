"""What a death says: from an exception, an exit code or a signal to a code, a sentence and what to type."""

import re
import shlex
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
        "sudo dmesg -T | grep -i 'killed process'    # on {node}; was it out of memory? if not, launch again",
    ),
    7: (
        "A page of memory could not be had: mostly /dev/shm is full.",
        "df -h /dev/shm    # on {node}; is it full?",
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
        "{python} -m pip install {0}    # on {node}; then launch again",
    ),
    (
        r"FileNotFoundError: \[Errno 2\] No such file or directory: '(/[^']+)'",
        "This node does not have the file that its code reads.",
        "{copy}",
    ),
    (
        r"Unable to find address for: ([\w.-]+)",
        "GLOO_SOCKET_IFNAME names a network card that this node does not have.",
        "ip -br address    # on {node}; which card do the others reach? GLOO_SOCKET_IFNAME must name it",
    ),
    (
        r"Too many open files",
        "The process may not have more files open at once.",
        "ulimit -n    # on {node}; `setup: [ulimit -n 65536]` in aboard.yaml, unless the script lowers it itself",
    ),
    (
        r"can't open file '?([^':]+)",
        "The script is not at this path on this node.",
        "ls -l {0}    # on {node}; set `workdir:` in aboard.yaml, or copy it there",
    ),
    (
        r"CUDA out of memory|OutOfMemoryError",
        "The GPU's memory is too small for what was asked of it.",
        "nvidia-smi    # on {node}; does something else use the GPU? else a smaller batch",
    ),
    (
        r"port: (\d+)\b.{0,200}(?:EADDRINUSE|[Aa]ddress already in use)",
        "Another process took the port of the rendezvous.",
        "sudo ss -ltnp 'sport = :{0}'    # on {node}; who has it? or leave MASTER_PORT as it is set",
    ),
    (
        r"EADDRINUSE|[Aa]ddress already in use",
        "Another process took the port of the rendezvous.",
        "sudo ss -ltnp    # on {node}; who has it?",
    ),
    (
        r"No space left on device",
        "A disk of this node is full.",
        "df -h    # on {node}; which one is full? remove there what nobody needs",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Told:
    """What is said of one death."""

    code: str
    seen: str
    why: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class Around:
    """What a mend may need: the Python of the node, and another node that may have what this one lacks."""

    python: str = "python3"
    peer: str = ""


def told_of(child: Child, tail: Sequence[str], around: Around) -> Told:
    """By what is surest: that it never started, its own exception, the signal, the last words on stderr."""
    if child.state == "failed":
        known, fix = _known(child.why, child, around)
        why = known or "The node could not start it: the directory or the program is not there, or may not be used."
        seen = f"was not started: {_clear(child.why)}"
        return Told(code="run-not-started", seen=seen, why=why, fix=_start_fix(child) or fix)
    if child.raised is not None:
        if child.raised.type.startswith("aboard."):
            return _our_own(child.raised)
        text = f"{child.raised.type}: {child.raised.message.strip()}"
        why, fix = _known(text, child, around)
        return Told(code="run-raised", seen=f"raised {_clear(text)}", why=why or "Its own code gave up.", fix=fix)
    code = child.code or 0
    if code < 0:
        return _by_signal(child, -code)
    last = next((line for line in reversed(tail) if line.strip()), "")
    why, fix = _known("\n".join(tail), child, around)
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


def _known(text: str, child: Child, around: Around) -> tuple[str, str]:
    for pattern, why, fix in _KNOWN:
        found = re.search(pattern, text)
        if found:
            # A shell is to read them as one word each, whatever a rank said.
            groups = [shlex.quote(visible(group)) for group in found.groups()]
            copy = _copy(groups[0], child.node, around.peer) if groups else ""
            return why, fix.format(*groups, node=child.node, python=around.python, copy=copy)
    return "", ""


def _copy(path: str, node: str, peer: str) -> str:
    """By way of the head, which has keys for both."""
    look = f"ls -l {path}    # on {node}; is it there?"
    return (
        f"{look}\nscp -3 {peer}:{path} {node}:{path}    # here; if {peer} has it; then launch again" if peer else look
    )


def _start_fix(child: Child) -> str:
    place = re.match(r"can't enter (\S+):", child.why)
    if place:
        return f"mkdir -p {place[1]}    # on {child.node}; or set `workdir:` in aboard.yaml"
    program = re.match(r"can't start (\S+):", child.why)
    return f"command -v {program[1]}    # on {child.node}" if program else ""


def _clear(text: str) -> str:
    """The first lines of what was said, on one line."""
    return visible(" ".join(text.split()), _SHOWN)
