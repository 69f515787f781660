"""The old command, pasted behind `aboard launch --`: a launcher's own flags, read into a request of ours.

One file a launcher, each with the table of its flags; a new launcher is one file and one line in `_BY_NAME`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from aboard.core.interpreter import NO_ENV
from aboard.core.paste.accelerate import from_accelerate
from aboard.core.paste.deepspeed import DEFAULT_HOSTFILE, from_deepspeed
from aboard.core.paste.exports import exported
from aboard.core.paste.pasted import Around, Files, Pasted
from aboard.core.paste.placed import placed
from aboard.core.paste.torchrun import from_torch_launch, from_torchrun
from aboard.core.paste.wrapped import refuse_wrapped
from aboard.core.words import visible
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses import paste as diagnoses

__all__ = ["DEFAULT_HOSTFILE", "Files", "Pasted", "exported", "paste", "placed"]

_Reader = Callable[[Sequence[str], Around], Pasted]

_BY_NAME: Mapping[str, _Reader] = {
    "deepspeed": from_deepspeed,
    "ds": from_deepspeed,
    "torchrun": from_torchrun,
    "accelerate": from_accelerate,
    "accelerate-launch": from_accelerate,
}
_BY_MODULE: Mapping[str, _Reader] = {
    "deepspeed.launcher.runner": from_deepspeed,
    "torch.distributed.run": from_torchrun,
    "torch.distributed.launch": from_torch_launch,
    "accelerate.commands.launch": from_accelerate,
    "accelerate.commands.accelerate_cli": from_accelerate,
}
# The commands of these have a word of their own before the flags.
_NEED_LAUNCH = frozenset({"accelerate", "accelerate.commands.accelerate_cli"})

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_PYTHON = re.compile(r"python[0-9.]*")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SLOTS = re.compile(r"\d{1,4}(,\d{1,4})*")


def paste(words: Sequence[str], files: Files, *, environ: Mapping[str, str] = NO_ENV, cwd: str = ".") -> Pasted | None:
    """What a launcher's command asks for; None if the words are no launcher's, and so a script with its arguments."""
    set_before, command = _assignments(words)
    if not command:
        return None
    name, rest = _module(command) or (command[0].rpartition("/")[2], command[1:])
    reader = _BY_MODULE.get(name) or _BY_NAME.get(name)
    if reader is None:
        refuse_wrapped(command, frozenset(_BY_NAME))
        return None
    if name in _NEED_LAUNCH:
        rest = _behind_launch(name, rest)
    pasted = reader(rest, Around(files=files, environ={**environ, **set_before}, cwd=cwd))
    return _with_set(_with_path_note(pasted, command[0]), set_before)


def _assignments(words: Sequence[str]) -> tuple[dict[str, str], Sequence[str]]:
    """`NCCL_DEBUG=INFO torchrun …`, as a shell reads it; `env` before it changes nothing."""
    env: dict[str, str] = {}
    rest = list(words[1:] if words and words[0] == "env" else words)
    while rest and (match := _ASSIGNMENT.fullmatch(rest[0])):
        env[match[1]] = match[2]
        rest.pop(0)
    return env, rest


def _module(words: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """The module of `python -u -m torch.distributed.run …` and what follows it."""
    if not _PYTHON.fullmatch(words[0].rpartition("/")[2]):
        return None
    place = 1
    while place < len(words) and words[place].startswith("-") and words[place] != "-m":
        place += 2 if words[place] in {"-W", "-X"} else 1
    return (words[place + 1], words[place + 2 :]) if words[place : place + 1] == ["-m"] and words[place + 1 :] else None


def _behind_launch(name: str, rest: Sequence[str]) -> Sequence[str]:
    if rest[:1] == ["launch"]:
        return rest[1:]
    seen = f"{name} {visible(rest[0]) if rest else ''}".strip() + " starts no run; accelerate launch does"
    raise InputError(diagnoses.SCRIPT, [Problem(where=name, seen=seen, fix=diagnoses.SCRIPT.fix("launch"))])


def _with_path_note(pasted: Pasted, first: str) -> Pasted:
    if "/" not in first:
        return pasted
    note = f"{visible(first)} is not run: each rank is started by its node's own Python (python: in aboard.yaml)."
    return replace(pasted, notes=(*pasted.notes, note))


def _with_set(pasted: Pasted, env: Mapping[str, str]) -> Pasted:
    """Variables set in front of the command reach every rank; devices named there are slots to use."""
    devices = env.get(_VISIBLE, "")
    taken = pasted.picked is not None or pasted.include or pasted.exclude
    if _VISIBLE in env and taken:
        note = f"{_VISIBLE}={visible(devices)} is not used: the launcher's flags say which slots to use."
        pasted = replace(pasted, notes=(*pasted.notes, note))
        env = {name: value for name, value in env.items() if name != _VISIBLE}
    elif _SLOTS.fullmatch(devices):
        pasted = replace(pasted, picked=tuple(map(int, devices.split(","))))
        env = {name: value for name, value in env.items() if name != _VISIBLE}
    return replace(pasted, request=replace(pasted.request, env={**pasted.request.env, **env})) if env else pasted
