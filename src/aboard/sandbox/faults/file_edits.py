"""Edits lines of a host's text files, and undoes an edit without touching later changes by others."""

import json
from collections.abc import Callable, Sequence
from typing import ClassVar

from aboard.lazy_dataclass import dataclass
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.root_commands import FAULT_STORE, run_as_root, run_script
from aboard.sandbox.host import Host
from aboard.sandbox.sandbox import Sandbox

# By rename, so that no reader sees half a file; owner and mode stay.
_WRITE = """
cat > "$1.new"
if [ -e "$1" ]; then chown --reference="$1" "$1.new"; chmod --reference="$1" "$1.new"; else chmod 644 "$1.new"; fi
mv -f "$1.new" "$1"
"""
_KEEP = 'mkdir -p "${1%/*}"; chmod 700 "${1%/*}"; cat > "$1"'
# The first line distinguishes an empty file from a missing one.
_READ = 'if [ -e "$1" ]; then echo here; cat "$1"; fi'


@dataclass(frozen=True, kw_only=True)
class FileEditFault(Fault):
    """A fault that is one edit of a file, under its own key."""

    survives_power: ClassVar[bool] = True

    def heal(self, box: Sandbox, host: Host) -> None:
        undo_edit(host, self.key)


def edit_lines(
    host: Host, key: str, path: str, *, first: Sequence[str] = (), drop: Callable[[str], bool] | None = None
) -> None:
    """Adds lines at the top of a file and removes those that `drop` selects; once per key."""
    if _read_file(host, _format_memory_path(key)) is not None:
        return
    before = _read_file(host, path)
    lines = (before or "").splitlines()
    dropped = [line for line in lines if drop is not None and drop(line)]
    after = _join_lines([*first, *(line for line in lines if line not in dropped)])
    memory = {"path": path, "before": before, "after": after, "added": list(first), "dropped": dropped}
    # Saved before the edit: if this process is killed in between, the edit can still be undone.
    run_as_root(host, "sh", "-euc", _KEEP, "sh", _format_memory_path(key), text=json.dumps(memory))
    run_as_root(host, "sh", "-euc", _WRITE, "sh", path, text=after)


def undo_edit(host: Host, key: str) -> None:
    """Removes the added lines and restores the dropped ones."""
    text = _read_file(host, _format_memory_path(key))
    if text is None:
        return
    memory = json.loads(text)
    path, before, after = memory["path"], memory["before"], memory["after"]
    now = _read_file(host, path) or ""
    restored = revert_lines(now, before=before or "", after=after, added=memory["added"], dropped=memory["dropped"])
    if restored or before is not None:
        run_as_root(host, "sh", "-euc", _WRITE, "sh", path, text=restored)
    else:
        run_as_root(host, "rm", "-f", path)
    run_script(host, 'rm -f "$1"; rmdir "${1%/*}"', _format_memory_path(key))


def revert_lines(now: str, *, before: str, after: str, added: Sequence[str], dropped: Sequence[str]) -> str:
    """The file's text without our edit, with everyone else's changes."""
    if now == after:
        return before
    lines = now.splitlines()
    for line in added:
        if line in lines:
            lines.remove(line)
    return _join_lines([*lines, *(line for line in dropped if line not in lines)])


def _format_memory_path(key: str) -> str:
    return f"{FAULT_STORE}/{key}/lines.json"


def _read_file(host: Host, path: str) -> str | None:
    here, _, text = run_script(host, _READ, path).partition("\n")
    return text if here else None


def _join_lines(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
