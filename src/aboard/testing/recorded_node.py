"""Loads the recording of a node from its folder.

    NAME/about.json     {"what": "one sentence", "like": "OTHER", "without": ["/sys/class/infiniband/mlx5_7/"]}
    NAME/root/…         files of the node, each at its path
    NAME/commands.json  [{"argv": ["nvidia-smi", "-q"], "code": 0, "stdout": "nvidia-smi-q.txt"}]
    NAME/commands/…     what they printed

All but about.json may be missing. `like` inherits the files and commands of another recording, except paths that start
with an entry of `without`; its own files and commands take precedence.
"""

import json
from collections.abc import Mapping
from dataclasses import field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

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


def load_recording(folder: Path) -> NodeRecording:
    """The recording in this folder, merged with the one that it is `like`."""
    about = _read_json(folder / "about.json", {})
    like = load_recording(folder.parent / about["like"]) if about.get("like") else NodeRecording()
    without = tuple(about.get("without", ()))
    return NodeRecording(
        files={
            **{path: text for path, text in like.files.items() if not path.startswith(without)},
            **_read_tree(folder / "root"),
        },
        commands={
            **like.commands,
            **{tuple(entry["argv"]): _read_output(folder, entry) for entry in _read_json(folder / "commands.json", [])},
        },
    )


def _read_json(path: Path, otherwise: Any) -> Any:
    return json.loads(path.read_text("utf-8")) if path.exists() else otherwise


def _read_tree(root: Path) -> dict[str, str]:
    return {f"/{path.relative_to(root)}": path.read_text("utf-8") for path in sorted(root.rglob("*")) if path.is_file()}


def _read_output(folder: Path, entry: dict[str, Any]) -> CommandOutput:
    printed = {side: folder / "commands" / entry[side] for side in ("stdout", "stderr") if side in entry}
    return CommandOutput(
        code=entry.get("code", 0),
        timed_out=entry.get("timed_out", False),
        **{"stdout": "", **{side: path.read_text("utf-8") for side, path in printed.items()}},
    )


def _is_match(path: str, wanted: list[list[str]]) -> bool:
    """Whether the path matches; a star matches within one path component, as on the node."""
    parts = path.split("/")
    return any(len(parts) == len(glob) and all(map(fnmatchcase, parts, glob)) for glob in wanted)
