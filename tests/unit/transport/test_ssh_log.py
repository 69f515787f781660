"""What ssh says, recorded from OpenSSH 8.x to 10.x, and what it means."""

from pathlib import Path

import pytest

from aboard.core.cluster.contact import NO_KEY
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.transport.ssh_log import SshLoginLog, classify_failure, parse_phase
from aboard.transport.transport import StreamEnding

LOGIN = """\
OpenSSH_9.2p1 Debian-2+deb12u10, OpenSSL 3.0.19 27 Jan 2026
debug1: Reading configuration data /etc/ssh/ssh_config
debug1: Connecting to n1 [10.77.0.2] port 22.
debug1: Connection established.
debug1: Remote protocol version 2.0, remote software version OpenSSH_9.2p1 Debian-2+deb12u10
debug1: SSH2_MSG_KEXINIT sent
debug1: SSH2_MSG_NEWKEYS sent
debug1: SSH2_MSG_NEWKEYS received
debug1: Authentications that can continue: publickey,password
Authenticated to n1 ([10.77.0.2]:22) using "publickey".
debug1: channel 0: new session [client-session] (inactive timeout: 0)
debug1: Entering interactive session.
debug1: Sending command: exec python3 -ISc 'import sys'
"""
TRAILER = """\
debug1: client_input_channel_req: channel 0 rtype exit-status reply 0
debug1: channel 0: free: client-session, nchannels 1
Transferred: sent 3512, received 3348 bytes, in 0.2 seconds
Bytes per second: sent 16697.2, received 15917.5
debug1: Exit status 127
"""
# A jump host's ssh writes to the same stderr: its login works, the node behind it does not.
JUMP = """\
OpenSSH_9.2p1 Debian-2+deb12u10, OpenSSL 3.0.19 27 Jan 2026
debug1: Setting implicit ProxyCommand from ProxyJump: ssh -v -W '[%h]:%p' jump
debug1: Executing proxy command: exec ssh -v -W '[10.77.0.9]:22' jump
debug1: Connecting to jump [10.77.0.1] port 22.
debug1: Connection established.
debug1: Remote protocol version 2.0, remote software version OpenSSH_9.2p1 Debian-2+deb12u10
debug1: SSH2_MSG_NEWKEYS received
Authenticated to jump ([10.77.0.1]:22) using "publickey".
debug1: channel_connect_stdio_fwd: 10.77.0.9:22
debug1: Entering interactive session.
channel 0: open failed: connect failed: {why}
stdio forwarding failed
kex_exchange_identification: Connection closed by remote host
Connection closed by UNKNOWN port 65535
"""
CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Host key for [10.77.0.2]:22 has changed and you have requested strict checking.
Host key verification failed.
"""


def _ending(stderr: str, code: int | None) -> StreamEnding:
    """The ending as a wire makes it: each line is a phase, speech, or nothing."""
    said, phases = [], {}
    for line in stderr.splitlines():
        phase = parse_phase(line)
        if phase:
            phases[phase] = 0.1
        elif phase is None and line:
            said.append(line)
    return StreamEnding(exit_code=code, stderr="\n".join(said), phases=phases)


DENIED = """\
debug1: Authentications that can continue: publickey
debug1: Next authentication method: publickey
{tried}
debug1: No more authentication methods to try.
me@n1: Permission denied (publickey).
"""


@pytest.mark.parametrize(
    ("tried", "none"),
    [
        ("debug1: Trying private key: {}/id_rsa\ndebug1: Trying private key: {}/id_ed25519", True),
        ("debug1: Trying private key: {}/id_rsa\ndebug1: Trying private key: {}/there", False),
        ("debug1: Offering public key: me@head ED25519 SHA256:x agent\ndebug1: Trying private key: {}/id_rsa", False),
        ("", False),
    ],
)
def test_a_user_without_any_key(tmp_path: Path, tried: str, *, none: bool) -> None:
    """Each file that ssh tried is missing, and nothing was offered; who could not try any may well have one."""
    (tmp_path / "there").touch()
    watch = SshLoginLog()
    lines = DENIED.format(tried=tried.replace("{}", str(tmp_path))).splitlines()
    phases = {phase: 0.1 for line in lines if (phase := watch.phase_of(line))}
    said = "\n".join(line for line in lines if watch.phase_of(line) is None)
    reason, told = classify_failure(StreamEnding(exit_code=255, stderr=said, phases=phases))
    assert reason is UnreachableReason.KEY_REFUSED
    assert told == (f"{NO_KEY}; " if none else "") + "me@n1: Permission denied (publickey)."


FAILED = {
    "ssh: connect to host n1 port 22: Connection refused": UnreachableReason.REFUSED,
    "ssh: connect to host n1 port 22: Connection timed out": UnreachableReason.TIMED_OUT,
    "ssh: connect to host n1 port 22: Operation timed out": UnreachableReason.TIMED_OUT,
    "ssh: connect to host n1 port 22: No route to host": UnreachableReason.NO_ROUTE,
    "ssh: connect to host n1 port 22: Network is unreachable": UnreachableReason.NO_ROUTE,
    "ssh: Could not resolve hostname n1: Name or service not known": UnreachableReason.UNRESOLVED,
    "ssh: Could not resolve hostname n1: nodename nor servname provided, or not known": UnreachableReason.UNRESOLVED,
    "ssh: Could not resolve hostname n1: Temporary failure in name resolution": UnreachableReason.UNRESOLVED,
    "me@n1: Permission denied (publickey).": UnreachableReason.KEY_REFUSED,
    "me@n1: Permission denied (publickey,gssapi-keyex,gssapi-with-mic).": UnreachableReason.KEY_REFUSED,
    "Permissions 0644 for '/home/me/.ssh/id_ed25519' are too open.\nme@n1: Permission denied (publickey).": (
        UnreachableReason.KEY_REFUSED
    ),
    "Received disconnect from 10.77.0.2 port 22:2: Too many authentication failures\n"
    "Disconnected from 10.77.0.2 port 22": UnreachableReason.KEY_REFUSED,
    "No ED25519 host key is known for n1 and you have requested strict checking.\n"
    "Host key verification failed.": UnreachableReason.HOST_KEY_UNKNOWN,
    "kex_exchange_identification: read: Connection reset by peer\n"
    "Connection reset by n1 port 22": UnreachableReason.DROPPED,
    "kex_exchange_identification: Connection closed by remote host\n"
    "Connection closed by n1 port 22": UnreachableReason.DROPPED,
    "ssh_exchange_identification: Connection closed by remote host": UnreachableReason.DROPPED,
    "kex_exchange_identification: banner line 0: Not allowed at this time": UnreachableReason.DROPPED,
    "Connection timed out during banner exchange\nConnection to 10.77.0.2 port 22 timed out": UnreachableReason.SILENT,
    "Unable to negotiate with 10.77.0.2 port 22: no matching host key type found.": UnreachableReason.UNKNOWN,
}


@pytest.mark.parametrize(("stderr", "reason"), FAILED.items())
def test_a_failed_login_has_its_reason(stderr: str, reason: UnreachableReason) -> None:
    """Each of the ways to fail is told apart, with ssh's own line."""
    before = "OpenSSH_8.0p1, OpenSSL 1.1.1k  FIPS 25 Mar 2021\ndebug1: Reading configuration data /etc/ssh/ssh_config\n"
    assert classify_failure(_ending(before + stderr, 255)) == (reason, stderr.splitlines()[0])


def test_a_changed_host_key_is_told_from_an_unknown_one() -> None:
    """Both end with "Host key verification failed"; only one of them may be an attack."""
    assert classify_failure(_ending(CHANGED, 255))[0] is UnreachableReason.HOST_KEY_CHANGED


def test_an_ssh_that_says_nothing_has_no_reason() -> None:
    """Its version and its debugging are no speech."""
    stderr = "OpenSSH_10.0p2 Debian-7, OpenSSL 3.5.1 1 Jul 2025\ndebug1: Reading configuration data x"
    assert classify_failure(_ending(stderr, 255)) == (UnreachableReason.UNKNOWN, "ssh printed nothing")


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("Connection refused", UnreachableReason.REFUSED),
        ("Connection timed out", UnreachableReason.TIMED_OUT),
        ("No route to host", UnreachableReason.NO_ROUTE),
        ("Name or service not known", UnreachableReason.UNRESOLVED),
    ],
)
def test_a_node_behind_a_jump_host_has_its_own_reason(why: str, reason: UnreachableReason) -> None:
    """The jump host's login is not the node's: what the jump host says of the node counts, and is no drop."""
    ending = _ending(JUMP.format(why=why), 255)
    assert "logged-in" not in ending.phases
    assert classify_failure(ending) == (reason, f"channel 0: open failed: connect failed: {why}")


FISH = """\
fish: Unknown command: python9
fish:
exec python9 -ISc 'import sys'
     ^~~~~~^"""
NO_PYTHON = {
    "bash: line 1: exec: python9: not found": 127,
    "bash: line 1: /opt/python: Permission denied": 126,
    "/usr/bin/dash: 1: exec: python9: not found": 127,
    "zsh:1: command not found: python9": 127,
    "python9: Command not found.": 1,
    "tcsh: /opt/python: No such file or directory.": 1,
    FISH: 127,
    "/opt/python: error while loading shared libraries: libpython3.so: cannot open shared object file": 127,
}


@pytest.mark.parametrize(("said", "code"), NO_PYTHON.items())
def test_a_shell_that_finds_no_python_says_so_in_its_own_words(said: str, code: int) -> None:
    """Six shells, two exit codes; the line is the shell's, not a picture or ssh's own farewell below it."""
    assert classify_failure(_ending(LOGIN + said + "\n" + TRAILER, code)) == (
        UnreachableReason.NO_PYTHON,
        said.splitlines()[0],
    )


def test_an_old_python_tells_its_version() -> None:
    """Our own line refuses to run there."""
    assert classify_failure(_ending(LOGIN + "aboard: python 3.6.8\n" + TRAILER, 1)) == (
        UnreachableReason.OLD_PYTHON,
        "3.6.8",
    )
    more = LOGIN + "aboard: python 3.6.8 /usr/bin/python3.6 /usr/bin/python3.9\n" + TRAILER
    assert classify_failure(_ending(more, 1))[1] == "3.6.8; also installed: /usr/bin/python3.6 /usr/bin/python3.9"


def test_a_connection_that_breaks_after_login_is_lost() -> None:
    """It is no refused key and no drop that would be tried again."""
    stderr = LOGIN + "Connection to n1 closed by remote host.\n" + TRAILER
    assert classify_failure(_ending(stderr, 255)) == (UnreachableReason.LOST, "Connection to n1 closed by remote host.")


def test_another_end_after_login_is_not_our_agent() -> None:
    """A login shell that does something else ends with a code of its own."""
    assert classify_failure(_ending(LOGIN + TRAILER, 1)) == (
        UnreachableReason.GARBAGE,
        "the shell exited with code 1",
    )


@pytest.mark.parametrize(
    "banner",
    [
        "Unauthorized users: Permission denied (without exception)!",
        "If you see 'Connection refused', call the help desk",
        "This host is down for maintenance on Sundays",
        "Connection timed out? Read the wiki.",
        "We say 'Host key verification failed' when",
    ],
)
def test_a_banner_is_no_reason(banner: str) -> None:
    """Servers print what they like before login, on the same stderr; ssh's own line is what counts."""
    end = "Connection closed by 10.77.0.2 port 22"
    assert classify_failure(_ending(f"{banner}\n{end}\n", 255)) == (UnreachableReason.UNKNOWN, end)


def test_the_phases_of_a_login_come_in_order() -> None:
    """They tell where the time of a slow login went."""
    assert list(_ending(LOGIN, None).phases) == ["connected", "greeted", "keys", "logged-in"]


def test_a_master_that_is_open_already_is_a_login() -> None:
    """Through the user's own master connection nothing is dialled: the session is there at once."""
    ending = _ending("debug1: mux_client_request_session: master session id: 2\nbash: python9: command not found", 127)
    assert list(ending.phases) == ["logged-in"]
    assert classify_failure(ending) == (UnreachableReason.NO_PYTHON, "bash: python9: command not found")


@pytest.mark.parametrize("line", ["debug1: Exit status 0", "debug2: fd 3 setting O_NONBLOCK", *TRAILER.splitlines()])
def test_what_verbose_adds_is_no_speech(line: str) -> None:
    """It ends no phase and says nothing."""
    assert parse_phase(line) == ""
    assert parse_phase("Welcome to the cluster") is None
