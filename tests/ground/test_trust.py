"""`aboard trust` on bare hosts, which accept nothing but an admin key."""

import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from deadlines import slowness
from launching import build_sandbox

from aboard.sandbox import Host, Sandbox
from aboard.sandbox.host_setup.system_files import CREW_HOME

pytestmark = pytest.mark.ground

NODES = ("n1", "n2", "n3")
# Type, mode, name and content of everything in the home; the state directory has runs, too.
_LIST = (
    "cd ~ && find . -path ./.local -prune -o -print0 | sort -z | xargs -0 stat -c '%F %a %n' &&"
    " find . -path ./.local -prune -o -type f -print0 | sort -z | xargs -0 sha256sum"
)


@pytest.fixture(scope="module")
def bare() -> Iterator[Sandbox]:
    """Three bare nodes that the tests share: each one undoes what it did."""
    with build_sandbox("trust", nodes=3, bare=True) as box:
        yield box


def list_homes(box: Sandbox) -> dict[str, str]:
    return {host.name: host.run(["sh", "-c", _LIST]).stdout for host in (box.head, *box.nodes)}


def run_trust(box: Sandbox, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of `aboard trust`, without a terminal."""
    done = box.head.run(["aboard", "trust", *words, "--json"], timeout=120)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def trust_all(box: Sandbox, *words: str) -> tuple[int, dict[str, Any]]:
    options = ("--hostfile", "hostfile", "--identity", "admin.pem", "--fingerprints", "fingerprints")
    return run_trust(box, *options, *words)


def list_codes(report: dict[str, Any]) -> dict[str, str]:
    return {finding["nodes"][0]: finding["code"] for finding in report["findings"]}


def can_log_in(source: Host, target: str) -> bool:
    return source.run(["ssh", "-o", "BatchMode=yes", "-o", "UpdateHostKeys=no", target, "true"]).returncode == 0


def test_a_mesh_comes_and_goes(bare: Sandbox) -> None:
    """Head first, then all nodes; a second run changes nothing; undo restores every file and mode."""
    before = list_homes(bare)
    code, report = trust_all(bare)
    assert (code, report["findings"]) == (0, [])
    assert [node["installed"] for node in report["nodes"]] == [True] * 3
    assert len(report["pinned"]) == 3
    assert all(can_log_in(bare.head, name) for name in NODES)
    assert not can_log_in(bare.host("n1"), "n2")
    again = bare.head.run(["aboard", "trust", "--hostfile", "hostfile"])
    assert again.returncode == 0
    assert "nothing to change" in again.stdout

    code, report = run_trust(bare, "--hostfile", "hostfile", "--mesh")
    assert (code, report["findings"]) == (0, [])
    assert (report["mesh"]["logins"], report["mesh"]["pairs"], report["mesh"]["created_keys"]) == (9, 9, 3)
    assert can_log_in(bare.host("n3"), "n1")
    public = {host.run(["cat", f"{CREW_HOME}/.ssh/id_ed25519.pub"]).stdout.split()[1] for host in bare.nodes}
    assert len(public) == 3
    settled = list_homes(bare)
    code, report = run_trust(bare, "--hostfile", "hostfile", "--mesh")
    assert (code, report["mesh"]["lines"]) == (0, 0)
    assert list_homes(bare) == settled

    code, report = run_trust(bare, "--undo")
    assert (code, report["nodes"], report["head"]) == (0, list(NODES), True)
    assert list_homes(bare) == before
    assert "nothing to undo" in bare.head.run(["aboard", "trust", "--undo"]).stdout


def test_host_keys_are_never_accepted_blindly(bare: Sandbox) -> None:
    """Without a terminal or a file nothing happens; a key that the file contradicts or lacks is refused by name."""
    before = list_homes(bare)
    done = bare.head.run(["aboard", "trust", "--hostfile", "hostfile", "--identity", "admin.pem"])
    assert done.returncode == 3
    assert "trust-confirm" in done.stderr
    assert list_homes(bare) == before
    script = "sed -e '/ n1 /d' -e 's/^256 SHA256:....\\(.*n2 \\)/256 SHA256:AAAA\\1/' fingerprints > partial"
    bare.head.run(["sh", "-c", script]).check_returncode()
    words = ("--hostfile", "hostfile", "--identity", "admin.pem", "--fingerprints", "partial")
    try:
        code, report = run_trust(bare, *words)
        assert code == 2
        assert list_codes(report) == {"n1": "trust-fingerprint-missing", "n2": "trust-fingerprint-differs"}
        assert [node["reached"] for node in report["nodes"]] == [False, False, True]
        known = bare.head.run(["cat", f"{CREW_HOME}/.ssh/known_hosts"]).stdout
        assert [line.split()[0] for line in known.splitlines()] == ["n3"]
    finally:
        assert run_trust(bare, "--undo")[0] == 0
        bare.head.run(["rm", "partial"])
    assert list_homes(bare) == before


def test_one_node_off_and_one_with_another_key_do_not_stop_the_third(bare: Sandbox) -> None:
    """Each is named; the old host key stays; undo waits for the node that is off, and edits by others stay."""
    before = list_homes(bare)
    assert trust_all(bare)[0] == 0
    n1, n2, n3 = bare.nodes
    old = n2.ssh_host_key()
    n3.run(["sh", "-c", "echo '# theirs' >> ~/.ssh/authorized_keys"])
    known = bare.head.run(["cat", f"{CREW_HOME}/.ssh/known_hosts"]).stdout
    n1.sshd_stop()
    keep = "cp -p /etc/ssh/ssh_host_ed25519_key /root/kept; cp -p /etc/ssh/ssh_host_ed25519_key.pub /root/kept.pub"
    n2.run(["sh", "-c", keep], root=True).check_returncode()
    n2.ssh_host_key(new=True)
    try:
        code, report = trust_all(bare, "--mesh")
        assert code == 2
        assert list_codes(report) == {"n1": "reach-refused", "n2": "reach-host-key-changed"}
        changed = next(finding for finding in report["findings"] if finding["nodes"] == ["n2"])
        assert changed["seen"].count("SHA256:") == 2
        assert "ssh-keygen -R n2" in changed["fix"]
        assert report["nodes"][2]["reached"]
        assert bare.head.run(["cat", f"{CREW_HOME}/.ssh/known_hosts"]).stdout == known

        code, report = run_trust(bare, "--undo")
        assert code == 2
        assert (report["nodes"], report["head"]) == (["n3"], False)
        codes = {finding["code"] for finding in report["findings"]}
        assert codes == {"reach-refused", "reach-host-key-changed", "trust-undo-waits"}
    finally:
        back = "cp -p /root/kept /etc/ssh/ssh_host_ed25519_key; cp -p /root/kept.pub /etc/ssh/ssh_host_ed25519_key.pub"
        n2.run(["sh", "-c", back], root=True).check_returncode()
        n2.sshd_restart()
        n1.sshd_restart()
    assert n2.ssh_host_key() == old
    code, report = run_trust(bare, "--undo")
    assert (code, report["nodes"], report["head"]) == (0, ["n1", "n2"], True)
    n3.run(["sh", "-c", "sed -i '/^# theirs$/d' ~/.ssh/authorized_keys"]).check_returncode()
    assert list_homes(bare) == before


def test_a_jump_host_is_pinned_before_the_node_behind_it(bare: Sandbox) -> None:
    """ssh_config says how to get there; its key is compared, too."""
    before = list_homes(bare)
    config = "Host n1\n  IdentityFile ~/admin.pem\nHost n2\n  ProxyJump n1\n"
    bare.head.run(["sh", "-c", "cat > ~/.ssh/config"], input=config)
    try:
        words = ("--identity", "admin.pem", "--fingerprints", "fingerprints")
        bare.head.run(["sh", "-c", "grep -v ' n1 ' fingerprints > partial"])
        code, report = run_trust(bare, "n2", "--identity", "admin.pem", "--fingerprints", "partial")
        assert (code, list_codes(report)) == (2, {"n1": "trust-fingerprint-missing"})
        code, report = run_trust(bare, "n2", *words)
        assert (code, report["findings"]) == (0, [])
        assert [each["node"] for each in report["pinned"]] == ["n1", "n2"]
        assert can_log_in(bare.head, "n2")
        assert run_trust(bare, "--undo")[0] == 0
    finally:
        bare.head.run(["rm", "-f", f"{CREW_HOME}/.ssh/config", "partial"])
    assert list_homes(bare) == before


def test_a_person_confirms_once(bare: Sandbox) -> None:
    """On a terminal: the fingerprints are shown, `n` changes nothing, `y` goes on."""
    before = list_homes(bare)
    expected = [line.split()[1] for line in bare.head.run(["cat", "fingerprints"]).stdout.splitlines()]
    words = "aboard trust --hostfile hostfile --identity admin.pem"

    def answer(text: str) -> subprocess.CompletedProcess[str]:
        return bare.head.run(["script", "-qec", words, "/dev/null"], input=text, timeout=120)

    declined = answer("n\n")
    assert "trust-declined" in declined.stdout
    assert all(fingerprint in declined.stdout for fingerprint in expected)
    assert list_homes(bare) == before
    done = answer("y\n")
    assert "key installed and verified" in done.stdout
    assert all(can_log_in(bare.head, name) for name in NODES)
    assert run_trust(bare, "--undo")[0] == 0
    assert list_homes(bare) == before


def test_a_password_is_asked_for_once_per_node(bare: Sandbox) -> None:
    """By ssh itself on the terminal; afterwards the key logs in."""
    before = list_homes(bare)
    secret = subprocess.run(["openssl", "passwd", "-6", "open sesame"], check=True, capture_output=True, text=True)
    nodes = bare.nodes[:2]
    for node in nodes:
        script = 'cp -p /etc/shadow /root/shadow; echo "crew:$1:19000::::::" > /etc/shadow'
        node.run(["sh", "-c", script, "sh", secret.stdout.strip()], root=True).check_returncode()
        node.sshd_restart(["PasswordAuthentication=yes"])
    words = "aboard trust n1 n2 --fingerprints fingerprints"
    argv = ["script", "-qec", words, "/dev/null"]
    try:
        process = bare.head.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            said = ""
            for name in ("n1", "n2"):
                said = read_until(process, f"{name}'s password: ")
                assert f"ssh asks for your password on {name}, once" in said
                assert process.stdin is not None
                process.stdin.write(b"open sesame\n")
                process.stdin.flush()
            said = read_until(process, "To undo: aboard trust --undo")
            assert "key installed and verified" in said
        finally:
            process.kill()
            process.communicate()
        assert all(can_log_in(bare.head, node.name) for node in nodes)
        assert run_trust(bare, "--undo")[0] == 0
    finally:
        for node in nodes:
            node.run(["mv", "/root/shadow", "/etc/shadow"], root=True)
            node.sshd_restart()
    assert list_homes(bare) == before


def read_until(process: "subprocess.Popen[bytes]", end: str) -> str:
    """What a program prints up to this text."""
    assert process.stdout is not None
    said, deadline = b"", time.monotonic() + 30 * slowness()
    while end.encode() not in said:
        ready, _, _ = select.select([process.stdout], [], [], max(0, deadline - time.monotonic()))
        part = os.read(process.stdout.fileno(), 4096) if ready else b""
        assert part, said
        said += part
    return said.decode()
