"""The container that ranks run in: its settings, as fields of a frame, and where its files are outside."""

import posixpath
from collections.abc import Mapping
from dataclasses import field
from itertools import pairwise
from typing import Any

from aboard.core.cluster.interpreter import NO_ENV
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class Container:
    """The container that a node's ranks run in; the agent stays outside.

    `python` is the ranks' interpreter inside: by default the first `python3` on the image's own PATH. `binds` are
    SOURCE[:TARGET[:ro]], next to those that Aboard adds where they exist. `directories` are those that the run reads
    and writes, created where they are missing; `~/` is the node's home. `env` is set inside only. `gpus` is "auto",
    "nvidia", "rocm" or "none". `workdir` is the directory inside; None means the node's own, "" the image's. `entry`
    is "exec", or "run" for a command that goes through the image's entry point.
    """

    runtime: str
    image: str
    python: str = "python3"
    binds: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: NO_ENV, repr=False)
    options: tuple[str, ...] = ()
    writable_tmpfs: bool = False
    gpus: str = "auto"
    workdir: str | None = None
    entry: str = "exec"

    @property
    def is_apptainer(self) -> bool:
        """Whether images are files, as for Apptainer and its older name Singularity."""
        return self.runtime in {"apptainer", "singularity"}


def describe_container(container: Container | None, setup: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a frame that ask an agent to run a command in it; empty without a container.

    Its `env` and `python` are part of the command's own environment and argv.
    """
    if container is None:
        return {}
    fields = {
        "runtime": container.runtime,
        "image": container.image,
        "binds": list(container.binds),
        "directories": list(container.directories),
        "options": list(container.options),
        "writable_tmpfs": container.writable_tmpfs,
        "gpus": container.gpus,
        "workdir": container.workdir,
        "entry": container.entry,
    }
    return {"container": fields, "setup": list(setup)}


def map_to_outside(container: Container, path: str) -> str:
    """The path outside of one that a command inside names; the path inside if no bind covers it.

    A relative path stays relative if the container keeps the node's working directory.
    """
    return _find_source(container, path) or _resolve_inside(container, path)


def find_script_outside(container: Container, path: str) -> str | None:
    """The path outside of a rank's script; None if the image may contain it."""
    if container.workdir is None and not path.startswith(("/", "~")):
        return path
    return _find_source(container, path)


def _find_source(container: Container, path: str) -> str | None:
    inside = _resolve_inside(container, path)
    for source, target in sorted(_list_binds(container), key=lambda bind: len(bind[1]), reverse=True):
        if inside == target or inside.startswith(f"{target.rstrip('/')}/"):
            return posixpath.normpath(source + inside[len(target.rstrip("/")) :])
    return None


def _resolve_inside(container: Container, path: str) -> str:
    homes = _list_homes(container)
    if homes and (path == "~" or path.startswith("~/")):
        path = _split_bind(homes[-1])[1] + path[1:]
    if path.startswith("~") or not (container.workdir or path.startswith("/")):
        return path
    return posixpath.normpath(posixpath.join(container.workdir or "", path))


def _list_binds(container: Container) -> list[tuple[str, str]]:
    """The source and target of each bind."""
    return [_split_bind(bind) for bind in (*_list_homes(container), *container.binds)]


def _list_homes(container: Container) -> list[str]:
    return [value for name, value in pairwise(container.options) if name == "--home"]


def _split_bind(bind: str) -> tuple[str, str]:
    source, _, rest = bind.partition(":")
    return source, posixpath.normpath(rest.partition(":")[0] or source)
