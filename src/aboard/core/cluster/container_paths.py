"""Where files that a command in a container names are outside it."""

import posixpath

from aboard.core.cluster.node import Container


def map_to_outside(container: Container, path: str) -> str:
    """The path outside of one that a command inside names; the same path if no bind covers it.

    A relative path stays relative if the container keeps the node's working directory.
    """
    binds = _list_binds(container)
    home = next((target for _, target in binds[: _count_homes(container)]), None)
    inside = f"{home}{path[1:]}" if home and (path == "~" or path.startswith("~/")) else path
    if not inside.startswith(("/", "~")):
        if not container.workdir:
            return path
        inside = posixpath.join(container.workdir, inside)
    inside = posixpath.normpath(inside)
    for source, target in sorted(binds, key=lambda bind: len(bind[1]), reverse=True):
        if inside == target or inside.startswith(f"{target.rstrip('/')}/"):
            return posixpath.normpath(source + inside[len(target.rstrip("/")) :])
    return inside


def _list_binds(container: Container) -> list[tuple[str, str]]:
    """The source and target of each bind, the home directory first."""
    homes = [value for name, value in zip(container.options, container.options[1:], strict=False) if name == "--home"]
    pairs = []
    for bind in (*homes, *container.binds):
        source, _, rest = bind.partition(":")
        pairs.append((source, posixpath.normpath(rest.partition(":")[0] or source)))
    return pairs


def _count_homes(container: Container) -> int:
    return container.options.count("--home")
