"""Edits files in a user's home over a shell; each change is recorded before it is made, and can be undone."""

import re
import secrets
from collections.abc import Callable, Sequence

from aboard.core.trust.file_changes import FileChange, plan_change, undo_changes, unwind_changes
from aboard.core.trust.public_keys import PublicKey, parse_public_key
from aboard.diagnoses import AboardError
from aboard.diagnoses.nodes import trust
from aboard.lazy_dataclass import dataclass
from aboard.record.trust_record import CreatedKey, MachineRecord
from aboard.transport.shell.node_shell import NodeShell, format_content

AUTHORIZED_KEYS = ".ssh/authorized_keys"
KNOWN_HOSTS = ".ssh/known_hosts"
# The ones that a user's ssh offers without being told to.
_KEY_FILES = (".ssh/id_ed25519", ".ssh/id_ecdsa", ".ssh/id_rsa")
_LOOKED = re.compile(rb"file (\d{1,20} \d{1,20})\n([ 0-9a-f\n]*)")
_CHANGED = 3
_TRIES = 5

# A new file is complete before it takes the old one's place, with its mode and owner; a symlink stays one. The checksum
# shows whether somebody else edited the file in between.
PRELUDE = """\
cd "$HOME" && umask 077 || exit 1
aboard_sum() { if [ -e "$1" ]; then cksum < "$1"; else echo none; fi; }
aboard_look() {
    if [ -f "$1" ]; then
        if [ "$(wc -c < "$1")" -gt 4194304 ]; then echo larger than 4 MiB; return 1; fi
        sum=$(cksum < "$1") || return 1
        echo "file $sum"
        od -An -v -tx1 < "$1"
    elif [ -e "$1" ] || [ -L "$1" ]; then echo not a regular file; return 1
    else echo none; fi
}
aboard_put() {
    new="$1.aboard-$(uname -n)-$$"
    rm -f "$new"
    { [ ! -e "$1" ] || cp -p "$1" "$new"; } && cat > "$new" || { rm -f "$new"; return 1; }
    if [ "$(aboard_sum "$1")" != "$2" ]; then rm -f "$new"; return 3; fi
    if [ -L "$1" ]; then cat "$new" > "$1" && rm -f "$new"; else mv -f "$new" "$1"; fi
}
aboard_remove() { [ "$(aboard_sum "$1")" = "$2" ] || return 3; rm -f "$1"; }
aboard_key() { ssh-keygen -y -P "" -f "$1" 2>/dev/null; }"""


@dataclass(frozen=True, kw_only=True)
class FileContent:
    """A file as it is; None if there is no such file. `checksum` is the machine's own."""

    content: bytes | None
    checksum: str


class HomeFiles:
    """The files of one machine. `name` is for messages; paths are relative to the home, or absolute."""

    def __init__(self, name: str, shell: NodeShell, record: MachineRecord) -> None:
        self.name = name
        self.shell = shell
        self.record = record

    async def read(self, path: str) -> FileContent:
        reply = await self.shell.run(f"aboard_look {quote_path(path)}")
        if reply.output.strip() == b"none":
            return FileContent(content=None, checksum="none")
        match = _LOOKED.fullmatch(reply.output)
        digits = b"".join(match[2].split()) if match else b"?"
        if match is None or len(digits) % 2:
            raise self._refuse(path, reply.message.visible(200))
        return FileContent(content=bytes.fromhex(digits.decode()), checksum=match[1].decode())

    async def add_lines(self, path: str, choose: Callable[[bytes], Sequence[str]]) -> int:
        """Appends the lines that `choose` picks for the file's content; returns how many."""
        for _ in range(_TRIES):
            file = await self.read(path)
            lines = choose(file.content or b"")
            if not lines:
                return 0
            await self._ensure_directory(path)
            change, content = plan_change(path, file.content, lines)
            self.record.add_change(change)
            if await self._put(path, file.checksum, content):
                return len(lines)
            # Somebody edited the file in between, such as another node with the same home.
            self.record.drop_change(change)
        raise self._refuse(path, "another program keeps changing the file")

    async def find_key(self) -> PublicKey | None:
        """The user's own key; raises if it has a passphrase."""
        for path in _KEY_FILES:
            reply = await self.shell.run(f"[ ! -f {path} ] || aboard_key {path}")
            key = parse_public_key(reply.output.decode("utf-8", "replace"))
            if key is not None:
                return key
            if reply.code != 0:
                seen = f"{path} on {self.name} has a passphrase"
                raise AboardError(trust.MESH_KEY_LOCKED, seen, path=path, node=self.name)
        return None

    async def create_key(self, path: str = _KEY_FILES[0]) -> PublicKey:
        """Creates a key without a passphrase; the private key never leaves the machine."""
        await self._ensure_directory(path)
        comment = f"aboard-{secrets.token_hex(8)}"
        key = CreatedKey(path=path, comment=comment)
        self.record.add_key(key)
        quoted = quote_path(path)
        # `ln` fails if another node with the same home was faster: then its key is used.
        script = (
            f'new={quoted}.aboard-$(uname -n)-$$; trap \'rm -f "$new" "$new.pub"\' EXIT HUP INT TERM\n'
            f"ssh-keygen -q -t ed25519 -N '' -C {comment} -f \"$new\" || exit\n"
            f'if ln "$new" {quoted} 2>/dev/null || {{ [ ! -e {quoted} ] && mv "$new" {quoted}; }}\n'
            f'then mv "$new.pub" {quoted}.pub; fi\n'
            f"aboard_key {quoted}"
        )
        reply = await self.shell.run(script)
        made = parse_public_key(reply.output.decode("utf-8", "replace").strip().rpartition("\n")[2])
        if made is None or comment.encode() not in reply.output:
            self.record.forget_key(key)
        if made is None:
            seen = f"ssh-keygen on {self.name} can't create {path}: {reply.message.visible(200)}"
            raise AboardError(trust.KEY_MAKE, seen, node=self.name)
        return made

    async def remove_keys(self) -> list[str]:
        """Deletes the keys that we created; returns the paths where there is another one now, which stays."""
        left = []
        for key in self.record.machine.keys:
            if not await self._remove_key(key):
                left.append(key.path)
            self.record.forget_key(key)
        return left

    def list_changed(self) -> list[str]:
        """The paths of files with recorded changes."""
        return list(dict.fromkeys(change.path for change in self.record.machine.changes))

    async def restore(self, path: str) -> bool:
        """Takes back the newest changes of a file that is as we left it; False if there is none."""
        changes = self._list_changes(path)
        file = await self.read(path)
        content, kept = unwind_changes(file.content, changes)
        if kept == tuple(changes):
            return False
        if await self._replace(path, file, content):
            self.record.keep_changes(path, kept)
        return True

    async def remove_lines(self, path: str) -> None:
        """Takes our lines out of a file that was edited since."""
        for _ in range(_TRIES):
            file = await self.read(path)
            content = undo_changes(file.content, self._list_changes(path))
            if content == file.content or await self._replace(path, file, content):
                self.record.keep_changes(path, ())
                return
        raise self._refuse(path, "another program keeps changing the file")

    async def remove_directories(self) -> None:
        """Deletes the directories that we created, unless somebody has put something else there."""
        for path in reversed(self.record.machine.directories):
            await self.shell.run(f"rmdir {quote_path(path)} 2>/dev/null")
            self.record.forget_directory(path)

    def _list_changes(self, path: str) -> list[FileChange]:
        return [change for change in self.record.machine.changes if change.path == path]

    async def _replace(self, path: str, file: FileContent, content: bytes | None) -> bool:
        """Writes the content, or deletes the file; False if it has changed since it was read."""
        if content is not None:
            return await self._put(path, file.checksum, content)
        return await self._run_unless_changed(path, f"aboard_remove {quote_path(path)} '{file.checksum}'")

    async def _remove_key(self, key: CreatedKey) -> bool:
        """Removes a key that we created; False if there is another one in its place, which stays."""
        path = quote_path(key.path)
        script = (
            f"[ -e {path} ] || exit 0\n"
            f"case $(aboard_key {path}) in *' {key.comment}') rm -f {path} {path}.pub ;; *) exit 4 ;; esac"
        )
        return (await self.shell.run(script)).code == 0

    async def _put(self, path: str, checksum: str, content: bytes) -> bool:
        """Replaces the content; False if the file has changed since its checksum was taken."""
        script = f"{format_content(content)} | aboard_put {quote_path(path)} '{checksum}'"
        return await self._run_unless_changed(path, script)

    async def _run_unless_changed(self, path: str, script: str) -> bool:
        reply = await self.shell.run(script)
        if reply.code not in (0, _CHANGED):
            raise self._refuse(path, reply.message.visible(200))
        return reply.code == 0

    async def _ensure_directory(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        if (await self.shell.run(f"[ -d {quote_path(folder)} ]")).code == 0:
            return
        self.record.add_directory(folder)
        reply = await self.shell.run(f"mkdir -p -m 700 {quote_path(folder)}")
        if reply.code != 0:
            raise self._refuse(folder, reply.message.visible(200))

    def _refuse(self, path: str, reason: str) -> AboardError:
        return AboardError(trust.FILE, f"{path} on {self.name}: {reason}", node=self.name)


def quote_path(path: str) -> str:
    """A path as one word for `sh`, also if its characters are not plain."""
    return f'"$({format_content(path.encode())})"' if not re.fullmatch(r"[\w./-]+", path, re.ASCII) else path
