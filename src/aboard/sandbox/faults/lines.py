"""Lines taken out of a host's text file, and lines put in: undone without touching what others changed since."""

import json
from collections.abc import Callable, Sequence

from aboard.sandbox.faults.hands import STORE, do, script
from aboard.sandbox.host import Host

# By a rename, so that no reader sees half a file; owner and mode stay.
_WRITE = """
cat > "$1.new"
if [ -e "$1" ]; then chown --reference="$1" "$1.new"; chmod --reference="$1" "$1.new"; else chmod 644 "$1.new"; fi
mv -f "$1.new" "$1"
"""
_KEEP = 'mkdir -p "${1%/*}"; chmod 700 "${1%/*}"; cat > "$1"'
# The first line tells an empty file from none.
_READ = 'if [ -e "$1" ]; then echo here; cat "$1"; fi'


def edit(
    host: Host, key: str, path: str, *, first: Sequence[str] = (), drop: Callable[[str], bool] | None = None
) -> None:
    """Put lines at the top of a file and take the lines out that `drop` says; once per key."""
    if _read(host, _memory_path(key)) is not None:
        return
    before = _read(host, path)
    lines = (before or "").splitlines()
    dropped = [line for line in lines if drop is not None and drop(line)]
    after = _text([*first, *(line for line in lines if line not in dropped)])
    memory = {"path": path, "before": before, "after": after, "added": list(first), "dropped": dropped}
    # Remembered before it is done: whoever is killed in between leaves something that can be healed.
    do(host, "sh", "-euc", _KEEP, "sh", _memory_path(key), text=json.dumps(memory))
    do(host, "sh", "-euc", _WRITE, "sh", path, text=after)


def undo(host: Host, key: str) -> None:
    """Take the added lines out and put the dropped ones back."""
    remembered = _read(host, _memory_path(key))
    if remembered is None:
        return
    memory = json.loads(remembered)
    path, before, after = memory["path"], memory["before"], memory["after"]
    now = _read(host, path) or ""
    restored = merged_back(now, before=before or "", after=after, added=memory["added"], dropped=memory["dropped"])
    if restored or before is not None:
        do(host, "sh", "-euc", _WRITE, "sh", path, text=restored)
    else:
        do(host, "rm", "-f", path)
    script(host, 'rm -f "$1"; rmdir "${1%/*}"', _memory_path(key))


def merged_back(now: str, *, before: str, after: str, added: Sequence[str], dropped: Sequence[str]) -> str:
    """The file without our change, with everybody else's."""
    if now == after:
        return before
    lines = now.splitlines()
    for line in added:
        if line in lines:
            lines.remove(line)
    return _text([*lines, *(line for line in dropped if line not in lines)])


def _memory_path(key: str) -> str:
    return f"{STORE}/{key}/lines.json"


def _read(host: Host, path: str) -> str | None:
    here, _, text = script(host, _READ, path).partition("\n")
    return text if here else None


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
