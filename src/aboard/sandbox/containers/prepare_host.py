"""Prepares a host for containers of `crew`, as an administrator would.

The image is thin: its programs and Python are the host's own, which the runtimes' configuration binds into every
container. To its user it looks like an image that contains them.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from aboard.sandbox.containers.image_files import ARCHIVE, ENVIRONMENT, IMAGES, run_program
from aboard.sandbox.host_setup import system_files
from aboard.sandbox.host_setup.root_filesystem import list_outermost
from aboard.sandbox.namespaces import system_calls

_FIRST_SUBORDINATE_ID, _SUBORDINATE_IDS = 100_000, 65_536
# Debian's commands such as c++ are links to /etc/alternatives.
_SYSTEM_TREES = (Path("/usr"), Path("/etc/alternatives"))
# No control groups: the machine's belong to all hosts.
_CONTAINERS_CONF = """\
[containers]
cgroups = "disabled"
netns = "host"
volumes = [{volumes}]

[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


def mount_for_containers(crew_id: int) -> None:
    """Mounts what runtimes expect; needed at each boot."""
    system_calls.mount("cgroup", "/sys/fs/cgroup", "tmpfs")
    Path("/dev/mqueue").mkdir()
    system_calls.mount("mqueue", "/dev/mqueue", "mqueue")
    runtime_directory = Path(f"/run/user/{crew_id}")
    runtime_directory.mkdir(parents=True)
    runtime_directory.chmod(0o700)
    os.chown(runtime_directory, crew_id, crew_id)


def install_containers(crew_id: int, trees: Iterable[Path], environment: Path | None, *, image_store: bool) -> None:
    """Configures both runtimes and loads the image, at the first boot; Podman's belongs to `crew`'s home.

    The `environment` is in the image, although the host doesn't have it at this path.
    """
    binds = {path: path for path in list_outermost([*_SYSTEM_TREES, *trees])}
    if environment is not None:
        binds[environment] = ENVIRONMENT
    with Path("/etc/apptainer/apptainer.conf").open("a") as config:
        config.write("".join(f"bind path = {source}:{path}\n" for path, source in binds.items()))
    Path("/etc/containers").mkdir(exist_ok=True)
    for name, text in build_podman_files(binds).items():
        Path(name).write_text(text)
    if image_store:
        home = f"HOME={system_files.CREW_HOME}"
        run_program(
            [
                *("setpriv", f"--reuid={crew_id}", f"--regid={crew_id}", "--clear-groups", "env", home),
                *("podman", "load", "--quiet", "--input", str(IMAGES / ARCHIVE)),
            ]
        )


def build_podman_files(binds: Mapping[Path, Path]) -> dict[str, str]:
    """The system files that let `crew` run Podman without root; `binds` are in every container, with their sources."""
    subordinate = f"crew:{_FIRST_SUBORDINATE_ID}:{_SUBORDINATE_IDS}\n"
    volumes = ", ".join(f'"{source}:{path}:ro"' for path, source in binds.items())
    return {
        "/etc/subuid": subordinate,
        "/etc/subgid": subordinate,
        "/etc/containers/storage.conf": '[storage]\ndriver = "vfs"\n',
        "/etc/containers/containers.conf": _CONTAINERS_CONF.format(volumes=volumes),
    }
