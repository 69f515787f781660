"""How an agent gets onto a node: one line of Python on the command line, the rest over stdin."""

import marshal
import secrets
import zlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.util import MAGIC_NUMBER

MARKER = b"\n<aboard %s>\n"

# Right in sh, csh and fish alike: no newline, no backslash, no single quote, no exclamation mark. It reads the
# agent from stdin, so that no secret and no source is on a command line: a length, that much of compressed source,
# and a last line that starts it. -I and -S keep the node's own PYTHONPATH, user site and .pth files out of an agent
# that needs none of them, and save 5 ms. A Python that is too old says which others stand beside it.
LINE = (
    'import sys;sys.version_info>=(3,9)or sys.exit("aboard: python "+" ".join([sys.version.split()[0]]'
    '+__import__("glob").glob("/usr/bin/python3.*[0-9]")));'
    'import zlib;f=open(0,"rb",closefd=False);exec(zlib.decompress(f.read(int(f.readline()))));exec(f.readline())'
)
# The interpreter's own way to end takes 5 ms more, for nothing: an agent has nothing buffered.
_START = b"import os;from aboard.agent.bridge import main;main(%r,%r);os._exit(0)\n"
TOO_OLD = "aboard: python "


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """What goes into the far end's stdin, and the marker after which its frames begin."""

    stdin: bytes
    marker: bytes


def argv(python: str) -> tuple[str, ...]:
    return (python, "-ISc", LINE)


def bootstrap(silence: float) -> Bootstrap:
    """The marker is made anew each time: nothing that a shell prints or echoes can look like it."""
    marker = MARKER % secrets.token_hex(16).encode()
    bundle = _compressed()
    return Bootstrap(stdin=b"%d\n%s" % (len(bundle), bundle) + _START % (marker, silence), marker=marker)


@cache
def _compressed() -> bytes:
    """A head behind a slow uplink sends this once for each node."""
    return zlib.compress(_bundle())


@cache
def _bundle() -> bytes:
    """The agent's sources and, for those that every agent needs, what compiling them gives on our own Python.

    As with a .pyc file, a node takes the latter only if its Python has the very same bytecode; it saves it 5 ms.
    """
    room = resources.files("aboard.agent")
    sources = {"aboard": "", "aboard.agent": ""}
    for file in room.iterdir():
        if file.name.endswith(".py") and file.name not in ("__init__.py", "shelf.py"):
            sources[f"aboard.agent.{file.name.removesuffix('.py')}"] = file.read_text("utf-8")
    for name in _BEACON:
        sources[f"aboard.agent.beacon.{name}"] = room.joinpath("beacon", f"{name}.py").read_text("utf-8")
    compiled = {name: marshal.dumps(compile(sources[name], f"<{name}>", "exec", optimize=2)) for name in _EARLY}
    shelf = room.joinpath("shelf.py").read_text("utf-8")
    return f"{shelf}\nsys.meta_path.insert(0, Shelf({sources!r}, {compiled!r}, {MAGIC_NUMBER!r}))\n".encode()


# For the keeper to pass on, as text: its ranks run under a Python of their own.
_BEACON = ("sitecustomize", "aboard_beacon", "aboard_beacon_torch")
# What every check imports on every node.
_EARLY = [
    f"aboard.agent.{name}"
    for name in (
        "asks",
        "bridge",
        "channel",
        "frames",
        "hello",
        "leftovers",
        "loop",
        "place",
        "spawn",
        "telling",
        "tree",
    )
]
