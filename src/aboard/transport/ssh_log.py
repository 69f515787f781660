"""Parses ssh's stderr: the login phase that a line completes, and why a connection failed.

OpenSSH is not translated, and its messages have been stable for years; those of 8.x to 10.x are in the tests.
"""

import re
from pathlib import Path

from aboard.core.cluster.contact import NO_KEY
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.transport.agent_bootstrap import classify_start_failure, extract_line, find_last_line
from aboard.transport.transport import StreamEnding

# In the order in which a login goes through them.
_PHASES = (
    ("connected", re.compile(r"debug1: Connection established\.")),
    ("greeted", re.compile(r"debug1: Remote protocol version")),
    ("keys", re.compile(r"debug1: SSH2_MSG_NEWKEYS received")),
    # Not "Authenticated to": a jump host's ssh prints that too, on the same stderr; only the last one sends a command.
    ("logged-in", re.compile(r"debug1: (Sending command: |mux_client_request_session: master session id)")),
)
# What did not finish after each phase, the last phase first.
_MISSING_AFTER = (
    ("logged-in", "login succeeded, but no agent started"),
    ("keys", "the key exchange succeeded, but the login did not finish"),
    ("greeted", "the key exchange did not finish"),
    ("connected", "the port is open, but no ssh server responded"),
)
# Lines of `-v` that are unrelated to failures.
_IGNORED_LINES = re.compile(
    r"debug[123]: |OpenSSH_\d|Authenticated to .* using \"|Transferred: sent |Bytes per second: sent |"
    r"Killed by signal \d+\.$"
)

# A server's banner is on the same stderr, so the patterns are as narrow as ssh's own lines are.
_REASONS = (
    # Host key first: a changed key is also reported as "verification failed".
    (UnreachableReason.HOST_KEY_CHANGED, ("host key for .* has changed",)),
    (UnreachableReason.HOST_KEY_CHANGED, ("REMOTE HOST IDENTIFICATION HAS CHANGED",)),
    (
        UnreachableReason.HOST_KEY_UNKNOWN,
        ("No .* host key is known for", "authenticity of host .* can't be established"),
    ),
    (UnreachableReason.HOST_KEY_UNKNOWN, ("^Host key verification failed",)),
    # Before the denial that follows from it: ssh passes over a key file that others may read.
    (UnreachableReason.KEY_REFUSED, (r"^Permissions [0-7]+ for '.+' are too open",)),
    (UnreachableReason.KEY_REFUSED, (r"Permission denied \([a-z,-]+\)", "Too many authentication failures")),
    (UnreachableReason.KEY_REFUSED, ("no more authentication methods", "^Account .* locked")),
    (
        UnreachableReason.UNRESOLVED,
        ("Could not resolve hostname", "(Name or service|nodename nor servname provided, or) not known"),
    ),
    (UnreachableReason.UNRESOLVED, ("Temporary failure in name resolution",)),
    (UnreachableReason.REFUSED, (r"connect (to .*|failed): Connection refused\s*$",)),
    (
        UnreachableReason.NO_ROUTE,
        (r"connect (to .*|failed): (No route to host|Network is unreachable|Host is down)\s*$",),
    ),
    (UnreachableReason.SILENT, ("^Connection timed out during banner exchange",)),
    # Before DROPPED: a jump host that can't reach the node prints this first, and its end resembles a drop.
    (UnreachableReason.TIMED_OUT, ("connect (to .*|failed): (Connection|Operation) timed out",)),
    (
        UnreachableReason.DROPPED,
        ("^(kex|ssh)_exchange_identification", "Exceeded MaxStartups", "Not allowed at this time"),
    ),
)
WITHOUT_KEY = "without-key"
_OFFERED = "debug1: Offering public key: "
_TRIED = "debug1: Trying private key: "
_NO_MORE_METHODS = "debug1: No more authentication methods to try"
_SSH_FAILED = 255


def parse_phase(line: str) -> str | None:
    """The phase that this line of `ssh -v` completes; "" for other debug lines, None for a message."""
    for phase, pattern in _PHASES:
        if pattern.match(line):
            return phase
    return "" if _IGNORED_LINES.match(line) else None


class SshLoginLog:
    """Reads the lines of one login and tracks whether ssh had any key to offer."""

    def __init__(self) -> None:
        self._missing = 0
        self._had = False

    def phase_of(self, line: str) -> str | None:
        """As `parse_phase`, plus WITHOUT_KEY where ssh gave up and every key file that it tried is missing."""
        if line.startswith(_OFFERED):
            self._had = True
        elif line.startswith(_TRIED):
            there = Path(line.removeprefix(_TRIED).strip()).exists()
            self._had, self._missing = self._had or there, self._missing + (not there)
        elif line.startswith(_NO_MORE_METHODS) and self._missing and not self._had:
            return WITHOUT_KEY
        return parse_phase(line)


def classify_failure(ending: StreamEnding) -> tuple[UnreachableReason, str]:
    """Why ssh ended before the agent started, and the line that shows it."""
    if ending.exit_code not in (None, _SSH_FAILED):
        return classify_start_failure(ending)
    if "logged-in" in ending.phases:
        # 255 is ssh's own exit code: that of the command on the node is unknown.
        return classify_start_failure(StreamEnding(exit_code=None, stderr=ending.stderr))
    for reason, patterns in _REASONS:
        match = re.search("|".join(patterns), ending.stderr, re.IGNORECASE | re.MULTILINE)
        if match:
            line = extract_line(ending.stderr, *match.span())
            keyless = reason is UnreachableReason.KEY_REFUSED and WITHOUT_KEY in ending.phases
            return reason, f"{NO_KEY}; {line}" if keyless else line
    return UnreachableReason.UNKNOWN, find_last_line(ending.stderr) or "ssh printed nothing"


def explain_timeout(ending: StreamEnding) -> tuple[str, str]:
    """The last phase that a login completed in time, and what was still missing: each has a different cause."""
    return next(((phase, what) for phase, what in _MISSING_AFTER if phase in ending.phases), ("", ""))
