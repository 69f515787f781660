"""The contents of a host's system files: hosts, passwd, sshd_config, known_hosts, the `aboard` script."""

import base64
import hashlib
import shlex
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from aboard.sandbox.layout import HEAD, HostAddress, SandboxLayout

CREW = "crew"
CREW_HOME = Path("/home/crew")
#: The one key that bare hosts accept.
ADMIN_KEY = CREW_HOME / "admin.pem"
CREW_PATH = "/usr/local/bin:/usr/bin:/bin"
ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SSHD_CONFIG = f"""\
# A host of a practice cluster: only `{CREW}` can log in, by key.
# As in Debian, Ubuntu and Red Hat: settings in these files come first, and the first of two settings wins.
Include /etc/ssh/sshd_config.d/*.conf
HostKey /etc/ssh/ssh_host_ed25519_key
PidFile /run/sshd.pid
PermitRootLogin no
PasswordAuthentication no
KbdInteractiveAuthentication no
PubkeyAuthentication yes
AuthorizedKeysFile .ssh/authorized_keys
UsePAM no
UseDNS no
PrintMotd no
PrintLastLog no
X11Forwarding no
SetEnv PATH={CREW_PATH}
Subsystem sftp internal-sftp
"""


def format_hosts_file(layout: SandboxLayout) -> str:
    """/etc/hosts: every host, itself included, under the address that its peers use."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    for place in layout.places.values():
        lines.append(f"{place.address} {place.name}")
        if place.fabric_address:
            lines.append(f"{place.fabric_address} {place.name}i")
    return "\n".join(lines) + "\n"


def format_hostfile(layout: SandboxLayout) -> str:
    """The nodes in DeepSpeed's hostfile format, without the head, which has no slots."""
    return "".join(f"{name} slots={layout.slots}\n" for name in layout.places if name != HEAD)


def format_known_hosts(places: Iterable[HostAddress], keys: Mapping[str, str]) -> str:
    """known_hosts: each host's key under its names and addresses."""
    lines = []
    for place in places:
        names = [place.name, place.address]
        if place.fabric_address:
            names += [f"{place.name}i", place.fabric_address]
        lines.append(f"{','.join(names)} {keys[place.name]}")
    return "\n".join(lines) + "\n"


def format_fingerprints(keys: Mapping[str, str]) -> str:
    """The host keys' fingerprints by host, as `ssh-keygen -lf known_hosts` prints them and a cloud's console shows."""
    lines = []
    for name, key in keys.items():
        digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
        lines.append(f"256 SHA256:{base64.b64encode(digest).decode().rstrip('=')} {name} (ED25519)")
    return "\n".join(lines) + "\n"


def set_user_entry(text: str, line: str) -> str:
    """Adds or replaces the entry of one name in a passwd, group or shadow file."""
    name = line.split(":", 1)[0]
    others = [entry for entry in text.splitlines() if entry.split(":", 1)[0] != name]
    return "\n".join([*others, line]) + "\n"


def find_free_id(*tables: str, taken: Collection[int] = (), first: int = 7700) -> int:
    """An id that is unused in these passwd and group files, as user and as group, and not in `taken`."""
    used = {
        int(field)
        for table in tables
        for entry in table.splitlines()
        for field in entry.split(":")[2:4]
        if field.isdigit()
    }
    return next(number for number in range(first, 60_000) if number not in used and number not in taken)


def format_aboard_shim(python: str, source: str | None) -> str:
    """A script that runs this `aboard`; `source` is its path if it is not installed.

    Of bash: dash would drop the functions that a shell exports (`export -f module`), which job scripts need.
    """
    path = f"export PYTHONPATH={shlex.quote(source)}${{PYTHONPATH:+:$PYTHONPATH}}\n" if source else ""
    return f'#!/bin/bash\n{path}exec {shlex.quote(python)} -m aboard "$@"\n'
