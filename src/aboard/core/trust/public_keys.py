"""ssh public keys and known_hosts lines: parsed strictly, so that no foreign line adds an option or another line."""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from aboard.lazy_dataclass import dataclass

# By the name that `ssh-keygen -l` prints.
KEY_TYPES = {
    "ED25519": ("ssh-ed25519",),
    "ECDSA": ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    "RSA": ("ssh-rsa",),
    "ED25519-SK": ("sk-ssh-ed25519@openssh.com",),
    "ECDSA-SK": ("sk-ecdsa-sha2-nistp256@openssh.com",),
}
_LABELS = {each: label for label, types in KEY_TYPES.items() for each in types}
_BLOB = re.compile(r"[A-Za-z0-9+/]{16,4096}={0,2}")
_COMMENT = re.compile(r"[\w.@:+-]{1,64}", re.ASCII)
_LENGTH = 4


@dataclass(frozen=True)
class PublicKey:
    """A public key: its type and its base64 text."""

    type: str
    blob: str

    @property
    def label(self) -> str:
        """The type as `ssh-keygen -l` prints it."""
        return _LABELS[self.type]

    @property
    def fingerprint(self) -> str:
        """The fingerprint as ssh prints it: `SHA256:…`."""
        digest = hashlib.sha256(base64.b64decode(self.blob)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    def format_line(self, comment: str) -> str:
        """A line of authorized_keys, with the comment if it is a harmless word."""
        return f"{self.type} {self.blob} {comment if _COMMENT.fullmatch(comment) else 'aboard'}"


def parse_public_key(text: str) -> PublicKey | None:
    """The key of `type base64 comment`; None for anything else."""
    words = text.split(None, 2)[:2]
    if len(words) < 2 or words[0] not in _LABELS or not _BLOB.fullmatch(words[1]):  # noqa: PLR2004 - type and base64
        return None
    try:
        data = base64.b64decode(words[1], validate=True)
    except binascii.Error:
        return None
    kind = words[0].encode()
    is_own_type = data[:_LENGTH] == len(kind).to_bytes(_LENGTH, "big") and data[_LENGTH:].startswith(kind)
    return PublicKey(words[0], words[1]) if is_own_type else None


def list_authorized_keys(content: bytes) -> Iterator[PublicKey]:
    """The keys of an authorized_keys file; a key may follow options."""
    for line in content.decode("utf-8", "replace").splitlines():
        words = line.split()
        for index, word in enumerate(words):
            if word in _LABELS and (key := parse_public_key(" ".join(words[index:]))):
                yield key
                break


def parse_known_host(line: str) -> tuple[str, PublicKey] | None:
    """The names and the key of a known_hosts line; None for a comment, a mark such as @revoked, or anything else."""
    names, _, rest = line.strip().partition(" ")
    key = None if names.startswith(("#", "@")) else parse_public_key(rest)
    return (names, key) if key else None


def find_known_keys(content: bytes, names: Iterable[str]) -> set[PublicKey]:
    """The keys that a known_hosts file has for any of these names."""
    known = filter(None, map(parse_known_host, content.decode("utf-8", "replace").splitlines()))
    wanted = [name.lower() for name in names]
    return {key for field, key in known if any(_matches_host(field, name) for name in wanted)}


def format_known_name(host: str, port: int) -> str:
    """The name under which ssh looks up a host."""
    return host.lower() if port == 22 else f"[{host.lower()}]:{port}"  # noqa: PLR2004 - ssh's own port


def _matches_host(field: str, name: str) -> bool:
    if field.startswith("|1|"):
        return _matches_hash(field, name)
    patterns = field.lower().split(",")
    if any(each.startswith("!") and fnmatchcase(name, _escape_brackets(each[1:])) for each in patterns):
        return False
    return any(fnmatchcase(name, _escape_brackets(each)) for each in patterns)


def _escape_brackets(pattern: str) -> str:
    """In known_hosts, brackets surround a name with a port; for fnmatch they are a set of characters."""
    return pattern.replace("[", "[[]")


def _matches_hash(field: str, name: str) -> bool:
    """A hashed name is `|1|salt|HMAC-SHA1 of the name`."""
    salt, _, digest = field.removeprefix("|1|").partition("|")
    try:
        made = hmac.new(base64.b64decode(salt), name.encode(), "sha1").digest()
        return hmac.compare_digest(made, base64.b64decode(digest))
    except binascii.Error:
        return False
