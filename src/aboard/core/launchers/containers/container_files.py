"""The head's files as a launcher inside a container sees them."""

from collections.abc import Mapping

from aboard.core.cluster.container import Container, map_to_outside
from aboard.core.launchers.containers.container_fields import APPTAINERS
from aboard.core.launchers.launcher_command import LauncherFiles
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class ContainerFiles:
    """Reads a path of the container from where its binds come from; `cwd` is the command's directory outside."""

    files: LauncherFiles
    container: Container
    cwd: str

    def exists(self, path: str) -> bool:
        return self.files.exists(self.find(path))

    def read(self, path: str) -> str:
        return self.files.read(self._find_existing(path))

    def settings(self, path: str) -> Mapping[str, object]:
        return self.files.settings(self._find_existing(path))

    def parse_settings(self, text: str, path: str) -> Mapping[str, object]:
        return self.files.parse_settings(text, path)

    def find(self, path: str) -> str:
        """The path outside, relative to the command's directory if that is how a script wrote the file."""
        outside = map_to_outside(self.container, path)
        relative = outside.removeprefix(f"{self.cwd}/")
        return relative if relative != outside and self.files.exists(relative) else outside

    def _find_existing(self, path: str) -> str:
        outside = self.find(path)
        if self.files.exists(outside):
            return outside
        image, name = self.container.image, path.rpartition("/")[2]
        way = "copy" if self.container.runtime in APPTAINERS else "copy-docker"
        fix = pasted_commands.CONTAINER.fix(way, runtime=self.container.runtime, image=image, path=path, name=name)
        seen = f"there is no {escape_text(outside)} on this machine, and Aboard doesn't read files of the image"
        raise InputError(pasted_commands.CONTAINER, [Problem(where=escape_text(path), seen=seen, fix=fix)])
