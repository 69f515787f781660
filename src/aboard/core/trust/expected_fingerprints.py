"""The host keys that the user expects: a file with fingerprints from a cloud's console, or with known_hosts lines."""

import re
from collections.abc import Iterable, Mapping

from aboard.core.trust.public_keys import KEY_TYPES, PublicKey, parse_known_host
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.nodes import trust
from aboard.diagnoses.untrusted import escape_text
from aboard.lazy_dataclass import dataclass

_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
# `256 SHA256:… n1,10.0.0.1 (ED25519)`, as `ssh-keygen -l` prints it; a public key's comment is `root@n1`.
_LISTED = re.compile(r"\d{2,5} (?P<fingerprint>\S+) (?P<names>\S+)(?: .*)? \((?P<label>[A-Z0-9-]+)\)")
_PLAIN = re.compile(r"(?P<names>\S+?):?\s+(?:(?P<label>[A-Z0-9-]+)\s+)?(?P<fingerprint>SHA256:\S+)")
_MOST_PROBLEMS = 20


@dataclass(frozen=True, kw_only=True)
class ExpectedFingerprint:
    """One fingerprint of a host; `label` is the type of the key, "" if the file doesn't say."""

    fingerprint: str
    label: str


@dataclass(frozen=True)
class ExpectedFingerprints:
    """The fingerprints by host name."""

    by_name: Mapping[str, tuple[ExpectedFingerprint, ...]]

    def find(self, names: Iterable[str]) -> tuple[ExpectedFingerprint, ...]:
        """The fingerprints of a host with any of these names."""
        return tuple(each for name in dict.fromkeys(names) for each in self.by_name.get(name.lower(), ()))


def parse_fingerprints(text: str, *, where: str) -> ExpectedFingerprints:
    """Reads `ssh-keygen -l` output, `HOST SHA256:…` and known_hosts lines; a line that is none of them is an error."""
    found: dict[str, list[ExpectedFingerprint]] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        entry = _parse_line(line.strip())
        if entry is None:
            seen = f"'{escape_text(line.strip(), 60)}' has no host name with a SHA256 fingerprint or a public key"
            problems.append(Problem(where=f"{where}:{number}", seen=seen, fix=trust.FINGERPRINTS.fix()))
            continue
        names, expected = entry
        for name in names.lower().split(","):
            found.setdefault(name.rpartition("@")[2], []).append(expected)
    if not found and not problems:
        problems = [Problem(where=where, seen="the file has no fingerprint", fix=trust.FINGERPRINTS.fix())]
    if problems:
        raise InputError(trust.FINGERPRINTS, problems[:_MOST_PROBLEMS])
    return ExpectedFingerprints({name: tuple(each) for name, each in found.items()})


def matches_expected(key: PublicKey, expected: Iterable[ExpectedFingerprint]) -> bool:
    return any(each.fingerprint == key.fingerprint for each in expected)


def list_key_types(expected: Iterable[ExpectedFingerprint]) -> tuple[str, ...]:
    """The key types to ask a host for; none if the file leaves one open."""
    labels = dict.fromkeys(each.label for each in expected)
    return () if "" in labels else tuple(kind for label in labels for kind in KEY_TYPES[label])


def _parse_line(line: str) -> tuple[str, ExpectedFingerprint] | None:
    known = parse_known_host(line)
    if known is not None:
        names, key = known
        # The name can't be read back from its hash.
        return None if names.startswith("|") else (names, _build_expectation(key.fingerprint, key.label))
    match = _LISTED.fullmatch(line) or _PLAIN.match(line)
    if match is None or not _FINGERPRINT.fullmatch(match["fingerprint"]):
        return None
    return match["names"], _build_expectation(match["fingerprint"], match["label"] or "")


def _build_expectation(fingerprint: str, label: str) -> ExpectedFingerprint:
    return ExpectedFingerprint(fingerprint=fingerprint, label=label if label in KEY_TYPES else "")
