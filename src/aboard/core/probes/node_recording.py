"""A recording of a node's files and command outputs, to replay its check without the node."""

from collections.abc import Mapping
from dataclasses import field
from fnmatch import fnmatchcase

from aboard.core.probes.probe import CommandOutput, FileContents, ProbeAnswer, ProbeFiles, ProbeQuestion
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class NodeRecording:
    """Files by absolute path, and outputs by argv. Anything else didn't exist on that machine."""

    files: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[tuple[str, ...], CommandOutput] = field(default_factory=dict)

    def answer(self, question: ProbeQuestion) -> ProbeAnswer:
        """The reply of the recorded node."""
        if isinstance(question, ProbeFiles):
            wanted = [glob.split("/") for glob in question.globs]
            return FileContents(
                files={path: text[: question.limit] for path, text in self.files.items() if _is_match(path, wanted)}
            )
        missing = CommandOutput(
            code=127, stdout="", stderr=f"can't start {question.argv[0]}: No such file or directory"
        )
        return self.commands.get(question.argv, missing)


def _is_match(path: str, wanted: list[list[str]]) -> bool:
    """Whether the path matches; a star matches within one path component, as on the node."""
    parts = path.split("/")
    return any(len(parts) == len(glob) and all(map(fnmatchcase, parts, glob)) for glob in wanted)
