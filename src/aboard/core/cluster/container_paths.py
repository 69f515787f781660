"""Where files that a command in a container names are outside it."""

import posixpath
from itertools import pairwise

from aboard.core.cluster.node import Container


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
