"""Unpacks an image once for all ranks of a node, where the runtime can't mount it: else each rank would unpack it."""

from __future__ import annotations

import contextlib
import os

from aboard.agent import frames, process_tree
from aboard.agent.container.container_command import VARIABLE_PREFIXES, ContainerSpec, run_after_setup
from aboard.agent.process_spawn import drop_relative_folders, read_start_failure, spawn_process
from aboard.agent.run_directory import IMAGES, name_elsewhere

LOG = "unpack.log"
LOG_BYTES = 64 * 1024
LOG_LINES, WHY_CHARS = 8, 500
# Unpacks $2 to $3 unless $1 can mount it: as root by its setuid starter, or with FUSE. What is missing altogether is
# left to the ranks' own command, which names it.
NOT_NEEDED = 64
UNPACK = """
command -v "$1" >/dev/null || exit 64
case $2 in
*://*) ;;
*)
    [ -f "$2" ] && [ -r "$2" ] || exit 64
    libexec=$("$1" buildcfg 2>/dev/null | sed -n s/^LIBEXECDIR=//p)
    for starter in "$libexec"/*/bin/starter-suid; do
        [ -u "$starter" ] && exit 64
    done
    if ( : <>/dev/fuse ) 2>/dev/null; then
        for program in "$libexec"/*/bin/squashfuse_ll "$(command -v squashfuse_ll)" "$(command -v squashfuse)"; do
            [ -x "$program" ] && exit 64
        done
    fi
    ;;
esac
exec "$1" --quiet build --sandbox "$3" "$2"
"""


class ImageUnpacks:
    """Holds the starts of ranks until their image is unpacked."""

    def __init__(self, run: str, directory: str, unpacked: dict[str, str] | None = None) -> None:
        """`unpacked` are images that the same agent has unpacked for its checks: they are moved here."""
        self._unpacked = dict(unpacked or {})
        self._run = run
        self._directory = directory
        self._pending: dict[int, tuple[str, int]] = {}
        self._held: dict[str, list[frames.Message]] = {}
        self._targets: dict[str, str] = {}
        self._failures: dict[str, str] = {}
        # The path to run each image from: its own, or where it was unpacked.
        self._paths: dict[str, str] = {}

    def hold(self, message: frames.Message) -> bool:
        """Whether this start must wait for its image; begins to unpack it."""
        spec = ContainerSpec(message["container"])
        if not spec.is_apptainer or spec.image in self._paths:
            return False
        if spec.image not in self._held:
            if self._take_over(spec, message):
                return False
            self._unpack(spec, message)
            self._held[spec.image] = []
        self._held[spec.image].append(message)
        return True

    def find_failure(self, message: frames.Message) -> str:
        """Why the image of this start could not be unpacked; "" if it was, or needs not be."""
        return self._failures.get(ContainerSpec(message["container"]).image, "")

    def list_pids(self) -> list[int]:
        """The processes that unpack images."""
        return list(self._pending)

    def release(self) -> dict[str, str]:
        """The unpacked images, which from now on belong to whoever moves them away."""
        unpacked = {image: path for image, path in self._paths.items() if path != image}
        for image in unpacked:
            del self._paths[image]
        return unpacked

    def resolve(self, image: str) -> str:
        """The path to run an image from."""
        return self._paths.get(image, image)

    def reap(self, pid: int, code: int) -> list[tuple[frames.Message, str]]:
        """The starts that waited for this process, each with why its image can't be used, "" if it can."""
        image, error_fd = self._pending.pop(pid, ("", -1))
        if not image:
            return []
        why = read_start_failure(error_fd) or ""
        os.close(error_fd)
        log = self._read_log()
        # A file that is no image for this node: the ranks' own command says what is wrong with it.
        if code not in (0, NOT_NEEDED) and not why and "Unable to build from" not in log:
            why = "can't unpack %s: %s" % (image, log or "exit code %d" % code)
        if why:
            self._failures[image] = why
        self._paths[image] = self._targets[image] if code == 0 else image
        return [(message, why) for message in self._held.pop(image)]

    def drop(self) -> None:
        """Forgets all starts that wait, since the run ends."""
        self._held = {image: [] for image in self._held}

    def _take_over(self, spec: ContainerSpec, message: frames.Message) -> bool:
        """Moves an image that a check has unpacked; one on another disk is unpacked again."""
        path = self._unpacked.pop(spec.image, "")
        target = self._choose_target(spec, message) if path else ""
        try:
            os.rename(path, target)
        except OSError:
            return False
        self._paths[spec.image] = target
        return True

    def _choose_target(self, spec: ContainerSpec, message: frames.Message) -> str:
        if spec.image not in self._targets:
            variable = VARIABLE_PREFIXES[spec.runtime] + "_TMPDIR"
            images = self._make_directory((message.get("env") or {}).get(variable) or _choose_disk(variable))
            self._targets[spec.image] = os.path.join(images, str(len(self._targets)))
        return self._targets[spec.image]

    def _unpack(self, spec: ContainerSpec, message: frames.Message) -> None:
        # The node's own values win, such as PATH; the user may set credentials of a registry, and the disk to use.
        env = {**(message.get("env") or {}), **os.environ, process_tree.RUN_ID: self._run}
        drop_relative_folders(env)
        target = self._choose_target(spec, message)
        env[VARIABLE_PREFIXES[spec.runtime] + "_TMPDIR"] = os.path.dirname(target)
        words = ["/bin/sh", "-c", UNPACK, "sh", spec.runtime, spec.image, target]
        null = os.open(os.devnull, os.O_RDONLY)
        log = os.open(os.path.join(self._directory, LOG), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            argv = run_after_setup([str(word) for word in message.get("setup") or ()], words)
            pid, error_fd = spawn_process(argv, env=env, cwd=message.get("cwd"), stdin=null, stdout=log, stderr=log)
        finally:
            os.close(null)
            os.close(log)
        self._pending[pid] = (spec.image, error_fd)

    def _make_directory(self, disk: str) -> str:
        """A private directory for what the runtime unpacks; one on another disk is removed with the run's as well."""
        images = os.path.join(self._directory, IMAGES)
        if self._targets:
            return images
        if not disk:
            os.mkdir(images, 0o700)
            return images
        # Other nodes may have the same disk.
        elsewhere = os.path.join(disk, name_elsewhere(self._run) + os.urandom(4).hex())
        try:
            os.mkdir(elsewhere, 0o700)
        except OSError as error:
            raise OSError("can't unpack an image to %s: %s" % (disk, error.strerror)) from None
        os.symlink(elsewhere, images)
        return images

    def _read_log(self) -> str:
        """What the runtime printed, without remarks; of its errors, the last line says least."""
        with contextlib.suppress(OSError), open(os.path.join(self._directory, LOG), "rb") as log:
            lines = [
                line.partition("WARNING: ")[0].strip()
                for line in log.read(LOG_BYTES).decode("utf-8", "replace").splitlines()
            ]
            told = [line for line in dict.fromkeys(lines) if line and not line.startswith(("INFO", ": exit status"))]
            return "; ".join(told[-LOG_LINES:])[:WHY_CHARS]
        return ""


def _choose_disk(variable: str) -> str:
    """Where the user wants large temporary files; "" means the run's directory."""
    for name in (variable, "TMPDIR"):
        path = os.environ.get(name, "")
        if path.startswith("/") and os.path.isdir(path) and path.rstrip("/") != "/tmp":  # noqa: S108 - the run's
            return path
    return ""
