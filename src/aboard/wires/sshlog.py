"""What ssh says, as data: the phase that a line ends, and the reason that an ending had.

OpenSSH is not translated, and its messages have been stable for years; those of 8.x to 10.x are in the tests.
"""

import re
from pathlib import Path

from aboard.core.reach import NO_KEY
from aboard.diagnoses.reason import Reason
from aboard.wires.bootstrap import TOO_OLD
from aboard.wires.wire import Ending

# In the order in which a login goes through them.
_PHASES = (
    ("connected", re.compile(r"debug1: Connection established\.")),
    ("greeted", re.compile(r"debug1: Remote protocol version")),
    ("keys", re.compile(r"debug1: SSH2_MSG_NEWKEYS received")),
    # Not "Authenticated to": a jump host's ssh says that too, on the same stderr; only the last one sends a command.
    ("logged-in", re.compile(r"debug1: (Sending command: |mux_client_request_session: master session id)")),
)
# What `-v` adds and what says nothing about a failure.
_QUIET = re.compile(
    r"debug[123]: |OpenSSH_\d|Authenticated to .* using \"|Transferred: sent |Bytes per second: sent |"
    r"Killed by signal \d+\.$"
)

# A server's banner is on the same stderr, so the patterns are as narrow as ssh's own lines are.
_REASONS = (
    # Host key first: a changed key is also reported as "verification failed".
    (Reason.HOST_KEY_CHANGED, ("host key for .* has changed", "REMOTE HOST IDENTIFICATION HAS CHANGED")),
    (Reason.HOST_KEY_UNKNOWN, ("No .* host key is known for", "authenticity of host .* can't be established")),
    (Reason.HOST_KEY_UNKNOWN, ("^Host key verification failed",)),
    # Before the denial that follows from it: ssh passes over a key file that others may read.
    (Reason.KEY_REFUSED, (r"^Permissions [0-7]+ for '.+' are too open",)),
    (Reason.KEY_REFUSED, (r"Permission denied \([a-z,-]+\)", "Too many authentication failures")),
    (Reason.KEY_REFUSED, ("no more authentication methods", "^Account .* locked")),
    (
        Reason.UNRESOLVED,
        ("Could not resolve hostname", "(Name or service|nodename nor servname provided, or) not known"),
    ),
    (Reason.UNRESOLVED, ("Temporary failure in name resolution",)),
    (Reason.REFUSED, (r"connect (to .*|failed): Connection refused\s*$",)),
    (Reason.NO_ROUTE, (r"connect (to .*|failed): (No route to host|Network is unreachable|Host is down)\s*$",)),
    (Reason.SILENT, ("^Connection timed out during banner exchange",)),
    # Before DROPPED: a jump host that can't reach the node says this first, and its end looks like a drop.
    (Reason.TIMED_OUT, ("connect (to .*|failed): (Connection|Operation) timed out",)),
    (Reason.DROPPED, ("^(kex|ssh)_exchange_identification", "Exceeded MaxStartups", "Not allowed at this time")),
)
_NO_PYTHON = re.compile(
    r"^.*(not found|unknown command|no such file or directory|permission denied|cannot execute).*$",
    re.IGNORECASE | re.MULTILINE,
)
WITHOUT_KEY = "without-key"
_OFFERED = "debug1: Offering public key: "
_TRIED = "debug1: Trying private key: "
_GAVE_UP = "debug1: No more authentication methods to try"
_EXIT_NOT_FOUND = (126, 127)
_SSH_FAILED = 255


def phase_of(line: str) -> str | None:
    """The phase that this line of `ssh -v` ends; "" for a line that ends none and tells nothing, None for speech."""
    for phase, pattern in _PHASES:
        if pattern.match(line):
            return phase
    return "" if _QUIET.match(line) else None


class KeyWatch:
    """Sees the lines of one login, and whether ssh had any key to offer in it."""

    def __init__(self) -> None:
        self._missing = 0
        self._had = False

    def phase_of(self, line: str) -> str | None:
        """As the function; also a phase of its own where ssh gave up, and each key that it tried is missing."""
        if line.startswith(_OFFERED):
            self._had = True
        elif line.startswith(_TRIED):
            there = Path(line.removeprefix(_TRIED).strip()).exists()
            self._had, self._missing = self._had or there, self._missing + (not there)
        elif line.startswith(_GAVE_UP) and self._missing and not self._had:
            return WITHOUT_KEY
        return phase_of(line)


def reason_of(ending: Ending) -> tuple[Reason, str]:
    """Why ssh ended before an agent spoke, and the line that says so."""
    logged_in = "logged-in" in ending.phases
    if logged_in or ending.code not in (None, _SSH_FAILED):
        return _reason_inside(ending)
    for reason, patterns in _REASONS:
        found = re.search("|".join(patterns), ending.said, re.IGNORECASE | re.MULTILINE)
        if found:
            line = _line_with(ending.said, found)
            return (
                reason,
                f"{NO_KEY}; {line}" if reason is Reason.KEY_REFUSED and WITHOUT_KEY in ending.phases else line,
            )
    return Reason.UNKNOWN, _last_line(ending.said) or "ssh said nothing"


def _reason_inside(ending: Ending) -> tuple[Reason, str]:
    """The login worked; what the user's shell there made of our one line did not."""
    said = _last_line(ending.said)
    old = ending.said.find(TOO_OLD)
    if old >= 0:
        version, *others = ending.said[old + len(TOO_OLD) :].splitlines()[0].split() or ["unknown"]
        return Reason.OLD_PYTHON, version[:20] + (f"; beside it: {' '.join(others)}" if others else "")
    # csh ends with 1; fish draws a picture below the line that says it.
    missing = _NO_PYTHON.search(ending.said)
    if ending.code in _EXIT_NOT_FOUND or (ending.code == 1 and missing):
        return Reason.NO_PYTHON, missing[0].strip() if missing else said
    if ending.code == _SSH_FAILED or ending.code is None:
        return Reason.LOST, said or "the connection was lost after login"
    return Reason.GARBAGE, said or f"the shell ended with exit code {ending.code}"


def _line_with(text: str, found: re.Match[str]) -> str:
    start = text.rfind("\n", 0, found.start()) + 1
    end = text.find("\n", found.end())
    return text[start : end if end >= 0 else None].strip()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
