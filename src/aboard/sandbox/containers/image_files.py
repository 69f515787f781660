"""The image of a sandbox's containers as files for both runtimes; built once, so that all hosts have the same."""

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from pathlib import Path

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox

#: Where hosts have the files.
IMAGES = Path("/opt/images")
#: Where bare hosts have the virtual environment of their images, which the runtimes bind to its own path.
ENVIRONMENT = IMAGES / "environment"
SIF, ARCHIVE = "train.sif", "train.tar"
_NAME = "localhost/train:latest"
_DIRECTORIES = (
    *("dev", "etc/alternatives", "home", "mnt", "opt", "proc", "root"),
    *("run", "srv", "sys", "tmp", "usr", "var/tmp"),
)
_LINKS = {name: f"usr/{name}" for name in ("bin", "lib", "lib64", "sbin")}
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_COMMAND_TIMEOUT = 60.0


def build_image_files(directory: Path, search_path: str) -> None:
    """Writes the image for Apptainer and for Podman; `search_path` is the PATH inside."""
    root = directory / "rootfs"
    _make_root(root, search_path)
    run_program(["apptainer", "--quiet", "build", str(directory / SIF), str(root)])
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(root, ".")
    _write_archive(directory / ARCHIVE, layer.getvalue(), search_path)


def run_program(argv: list[str]) -> None:
    """Runs a program of the runtimes as root; raises with its last line if it fails."""
    result = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_COMMAND_TIMEOUT, cwd="/"
    )
    if result.returncode != 0:
        seen = result.stderr.strip().rpartition("\n")[2]
        raise SandboxError(sandbox.CONTAINERS, f"{argv[0]} exited with code {result.returncode}: {seen}")


def _make_root(root: Path, search_path: str) -> None:
    for name in _DIRECTORIES:
        (root / name).mkdir(parents=True)
    for name, target in _LINKS.items():
        (root / name).symlink_to(target)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    for name in ("hosts", "resolv.conf", "localtime"):
        (root / "etc" / name).touch()
    (root / ".singularity.d/env").mkdir(parents=True)
    # `apptainer run` starts the words after the image, as an image from Docker does.
    for name, line in (("env/90-environment.sh", f"export PATH={search_path}"), ("runscript", 'exec "$@"')):
        script = root / ".singularity.d" / name
        script.write_text(f"#!/bin/sh\n{line}\n")
        script.chmod(0o755)


def _write_archive(path: Path, layer: bytes, search_path: str) -> None:
    """An archive as `docker save` writes it."""
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Env": [f"PATH={search_path}"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [_NAME], "Layers": ["layer.tar"]}]
    contents = {
        "config.json": json.dumps(config).encode(),
        "layer.tar": layer,
        "manifest.json": json.dumps(manifest).encode(),
    }
    with tarfile.open(path, "w") as tar:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
