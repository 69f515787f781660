"""`accelerate launch …`, with its config file, read as accelerate 1.15 reads them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import field

from aboard.core.interpreter import NO_ENV
from aboard.core.paste.accelerate_env import environment
from aboard.core.paste.accelerate_flags import GRAMMAR, NAME, NOT_OURS, OURS_LAUNCHERS
from aboard.core.paste.accelerate_settings import Settings, Way, settle
from aboard.core.paste.exports import envfiles, exported
from aboard.core.paste.master import master
from aboard.core.paste.pasted import Around, Pasted
from aboard.core.paste.script import program
from aboard.core.paste.torchrun import NO_RENDEZVOUS
from aboard.core.paste.typed import Typed, read
from aboard.core.request import Request
from aboard.core.words import many, visible
from aboard.diagnoses import InputError, Problem, paste
from aboard.lazy import dataclass

_IDS = re.compile(r"\d{1,4}(,\d{1,4})*")


def from_accelerate(words: Sequence[str], around: Around) -> Pasted:
    """What `accelerate launch WORDS` asks for; its number of processes is that of all nodes together."""
    typed = read(GRAMMAR, words)
    path = _config_file(typed, around)
    settings = settle(typed, around.files.settings(path) if path else None, where=path or NAME)
    nodes, ranks, notes = _size(settings)
    hosts = _hosts(settings, around)
    if hosts.include or hosts.exclude:  # then these say how many
        ranks = None
    place = master(settings.text("main_process_ip"), _port(settings), where="--main_process_ip")
    env = {**hosts.env, **environment(settings)}
    if path and not typed.text("config_file"):
        notes = (f"Settings were read from {path}, as accelerate does.", *notes)
    if typed.text("rdzv_backend"):
        notes = (*notes, f"--rdzv_backend {NO_RENDEZVOUS}.")
    if settings.unknown:
        notes = (*notes, f"{path}: {', '.join(map(visible, settings.unknown))} means nothing to accelerate either.")
    return Pasted(
        launcher=NAME,
        request=Request(
            program=program(typed),
            ranks=ranks,
            nodes=nodes,
            master_address=place.address,
            master_port=place.port,
            env=env,
            threads=settings.count("num_cpu_threads_per_process"),
        ),
        hostfile=hosts.hostfile,
        include=hosts.include,
        exclude=hosts.exclude,
        picked=_picked(settings),
        notes=(*typed.notes, *notes, *hosts.notes),
    )


def _config_file(typed: Typed, around: Around) -> str | None:
    """The named file, or the one that `accelerate config` wrote; with --cpu only a named one counts."""
    if named := typed.text("config_file"):
        return named
    cache = around.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = around.environ.get("HF_HOME", f"{cache}/huggingface")
    path = f"{home}/accelerate/default_config.yaml"
    return path if not typed.on("cpu") and around.files.exists(path) else None


def _size(settings: Settings) -> tuple[int | None, int | None, tuple[str, ...]]:
    """Nodes, and ranks on each. Where accelerate would round down, and so start fewer than asked for, it is refused."""
    nodes, total = settings.count("num_machines"), settings.count("num_processes")
    if total is None:
        return nodes, None, ("The number of processes is not given: each node starts one rank for each of its slots.",)
    if nodes is None:
        note = f"The number of machines is not given: {many(total, 'rank')} on one node, as accelerate does."
        return 1, total, (note,)
    if total % nodes:
        seen = f"{total} processes can't be shared out evenly among {nodes} machines"
        fix = paste.FLAG.fix("processes")
        raise InputError(paste.FLAG, [Problem(where=f"{NAME} --num_processes", seen=seen, fix=fix)])
    return nodes, total // nodes, ()


@dataclass(frozen=True, kw_only=True)
class _Hosts:
    """The nodes that DeepSpeed's settings name, and what its launcher would carry to them."""

    hostfile: str | None = None
    include: str = ""
    exclude: str = ""
    env: Mapping[str, str] = field(default_factory=lambda: NO_ENV)
    notes: tuple[str, ...] = ()


def _hosts(settings: Settings, around: Around) -> _Hosts:
    """With DeepSpeed on several machines accelerate runs `deepspeed --hostfile …`, so what that does is done."""
    if settings.way is not Way.DEEPSPEED:
        return _Hosts()
    launcher = (settings.text("deepspeed_multinode_launcher") or "pdsh").lower()
    if launcher not in OURS_LAUNCHERS:
        where = f"{NAME} --deepspeed_multinode_launcher"
        seen = f"{visible(launcher)}: {NOT_OURS}"
        raise InputError(paste.FLAG, [Problem(where=where, seen=seen, fix=paste.FLAG.fix("pdsh"))])
    if (settings.count("num_machines") or 1) == 1 or launcher != "pdsh":
        before = around.environ.get("PYTHONPATH")
        return _Hosts(env={"PYTHONPATH": f"{before}:{around.cwd}" if before else around.cwd})
    # Not `./.deepspeed_env`: accelerate itself appends its whole environment to it at each start.
    more, found = envfiles(around, folders=("~",))
    exclude = settings.text("deepspeed_exclusion_filter") or ""
    return _Hosts(
        hostfile=settings.text("deepspeed_hostfile"),
        include="" if exclude else settings.text("deepspeed_inclusion_filter") or "",
        exclude=exclude,
        env=exported(around.environ, cwd=around.cwd) | more,
        notes=tuple(f"Environment variables were read from {file}." for file in found),
    )


def _port(settings: Settings) -> int | None:
    port = settings.values.get("main_process_port")
    return port if isinstance(port, int) else None


def _picked(settings: Settings) -> tuple[int, ...] | None:
    text = (settings.text("gpu_ids") or "all").replace(" ", "")
    if text == "all":
        return None
    if not _IDS.fullmatch(text):
        seen = f"'{visible(text)}' is no list of slot numbers"
        raise InputError(paste.FLAG, [Problem(where=f"{NAME} --gpu_ids", seen=seen, fix=paste.FLAG.fix("gpus"))])
    return tuple(map(int, text.split(",")))
