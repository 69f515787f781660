"""The fields of a frame that ask an agent to run a command in a container."""

from typing import Any

from aboard.core.cluster.node import Container


def describe_container(container: Container | None, setup: tuple[str, ...] = ()) -> dict[str, Any]:
    """Empty without a container. Its `env` and `python` are part of the command's own environment and argv."""
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
