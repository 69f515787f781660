"""The key of this machine's user: the one that ssh would use, from a file or the agent, or a new one."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from aboard.commands.trust.home_files import HomeFiles, quote_path
from aboard.core.trust.public_keys import PublicKey, parse_public_key
from aboard.diagnoses import AboardError
from aboard.diagnoses.nodes import trust
from aboard.lazy_dataclass import dataclass

_DEFAULT = "id_ed25519"


@dataclass(frozen=True, kw_only=True)
class HeadKey:
    """The public key, its comment for authorized_keys, and the path of the private key if it was created now."""

    key: PublicKey
    comment: str
    created: Path | None = None


async def ensure_head_key(head: HomeFiles, files: Sequence[Path]) -> HeadKey:
    """The first key that works without a question, of those that ssh tries for a node; without any, a new one."""
    locked = []
    for path in files:
        quoted = quote_path(str(path))
        reply = await head.shell.run(f"[ -f {quoted} ] && aboard_key {quoted}")
        if key := _parse_key(reply.output):
            return key
        locked += [path] if (await head.shell.run(f"[ -f {quoted} ]")).code == 0 else []
    # An agent holds keys that have a passphrase, and keys without a file.
    agent = (await head.shell.run("ssh-add -L 2>/dev/null")).output
    for line in agent.splitlines():
        if key := _parse_key(line):
            return key
    if locked:
        seen = f"{locked[0]} has a passphrase, and no ssh agent holds the key"
        raise AboardError(trust.KEY_LOCKED, seen, file=locked[0])
    path = next((each for each in files if each.name == _DEFAULT), files[0])
    made = await head.create_key(str(path))
    return HeadKey(key=made, comment="aboard", created=path)


def _parse_key(output: bytes) -> HeadKey | None:
    """A key that logs in unattended: one on a security key waits for a touch."""
    text = output.decode("utf-8", "replace").strip()
    key = parse_public_key(text)
    if key is None or key.type.startswith("sk-"):
        return None
    comment = ""
    with contextlib.suppress(IndexError):
        comment = text.split()[2]
    return HeadKey(key=key, comment=comment)
