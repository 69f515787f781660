"""The checkpoints of a directory on this machine."""

import re
from pathlib import Path

MARKER = "manifest.json"
STEP_NAME = re.compile(r"step-(\d{6,})(?:-(\d+))?")


def list_checkpoints(folder: Path) -> list[tuple[int, int, Path]]:
    """The complete checkpoints on this machine: step, attempt, path."""
    matches = [(STEP_NAME.fullmatch(path.name), path) for path in folder.glob("step-*") if (path / MARKER).is_file()]
    return [(int(match[1]), int(match[2] or 1), path) for match, path in matches if match]
