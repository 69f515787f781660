"""Prepares a host for containers of `crew`, as an administrator would.

The image is thin: its programs and Python are the host's own, which the runtimes' configuration binds into every
container. To its user it looks like an image that contains them.
"""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.sandbox.host_setup import system_files
from aboard.sandbox.host_setup.root_filesystem import list_outermost
from aboard.sandbox.namespaces import system_calls

IMAGES = Path("/opt/images")
APPTAINER_IMAGE = IMAGES / "train.sif"
PODMAN_IMAGE = "localhost/train:latest"
_FIRST_SUBORDINATE_ID, _SUBORDINATE_IDS = 100_000, 65_536
_COMMAND_TIMEOUT = 60.0
_DIRECTORIES = ("dev", "etc", "home", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp", "usr", "var/tmp")
_LINKS = {name: f"usr/{name}" for name in ("bin", "lib", "lib64", "sbin")}
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


def install_containers(crew_id: int, python: str, trees: Iterable[Path], *, image_store: bool) -> None:
    """Configures both runtimes and builds the image, at the first boot; Podman's belongs to `crew`'s home."""
    subordinate = f"crew:{_FIRST_SUBORDINATE_ID}:{_SUBORDINATE_IDS}\n"
    Path("/etc/subuid").write_text(subordinate)
    Path("/etc/subgid").write_text(subordinate)
    binds = [str(tree) for tree in list_outermost([Path("/usr"), *trees])]
    with Path("/etc/apptainer/apptainer.conf").open("a") as config:
        config.write("".join(f"bind path = {path}\n" for path in binds))
    Path("/etc/containers").mkdir(exist_ok=True)
    Path("/etc/containers/storage.conf").write_text('[storage]\ndriver = "vfs"\n')
    volumes = ", ".join(f'"{path}:{path}:ro"' for path in binds)
    Path("/etc/containers/containers.conf").write_text(_CONTAINERS_CONF.format(volumes=volumes))
    search_path = f"{Path(python).parent}:{system_files.ROOT_PATH}"
    root = IMAGES / "rootfs"
    _make_root(root, search_path)
    _run_as_root(["apptainer", "build", str(APPTAINER_IMAGE), str(root)])
    if image_store:
        archive = IMAGES / "train.tar"
        _run_as_root(["tar", "-C", str(root), "-cf", str(archive), "."])
        environment = f"HOME={system_files.CREW_HOME}"
        change = f"ENV=PATH={search_path}"
        _run_as_root(
            [
                *("setpriv", f"--reuid={crew_id}", f"--regid={crew_id}", "--clear-groups", "env", environment),
                *("podman", "import", "--quiet", "--change", change, str(archive), PODMAN_IMAGE),
            ]
        )


def _make_root(root: Path, search_path: str) -> None:
    for name in _DIRECTORIES:
        (root / name).mkdir(parents=True)
    for name, target in _LINKS.items():
        (root / name).symlink_to(target)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    for name in ("hosts", "resolv.conf", "localtime"):
        (root / "etc" / name).touch()
    variables = root / ".singularity.d/env"
    variables.mkdir(parents=True)
    (variables / "90-environment.sh").write_text(f"#!/bin/sh\nexport PATH={search_path}\n")
    (variables / "90-environment.sh").chmod(0o755)


def _run_as_root(argv: list[str]) -> None:
    result = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_COMMAND_TIMEOUT, cwd="/"
    )
    if result.returncode != 0:
        seen = result.stderr.strip().rpartition("\n")[2]
        raise SandboxError(sandbox.CONTAINERS, f"{argv[0]} exited with code {result.returncode}: {seen}")
