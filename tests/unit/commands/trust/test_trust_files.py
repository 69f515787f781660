"""What `aboard trust` writes and takes back: keys, fingerprints, and files edited over a real `sh`."""

import asyncio
import base64
import hashlib
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given, strategies as st

from aboard.commands.trust.home_files import AUTHORIZED_KEYS, KNOWN_HOSTS, PRELUDE, HomeFiles
from aboard.commands.trust.mesh import ALL_PAIRS, list_peers
from aboard.commands.trust.undo_trust import undo_homes
from aboard.core.cluster.node import Node
from aboard.core.trust.expected_fingerprints import list_key_types, matches_expected, parse_fingerprints
from aboard.core.trust.file_changes import FileChange, append_lines, plan_change, undo_changes
from aboard.core.trust.public_keys import (
    PublicKey,
    find_known_keys,
    format_known_name,
    list_authorized_keys,
    parse_known_host,
    parse_public_key,
)
from aboard.diagnoses import AboardError, Finding, InputError
from aboard.record.trust_record import TrustRecords
from aboard.transport.shell.node_shell import format_content
from aboard.transport.shell.ssh_login import open_local_shell, parse_settings

T = TypeVar("T")


def make_key(seed: str = "one") -> PublicKey:
    kind = b"ssh-ed25519"
    data = len(kind).to_bytes(4, "big") + kind + b"\0\0\0 " + hashlib.sha256(seed.encode()).digest()
    return PublicKey("ssh-ed25519", base64.b64encode(data).decode())


KEY, OTHER = make_key(), make_key("other")
LINE = KEY.format_line("me@head")


def test_a_key_has_the_fingerprint_that_ssh_prints(tmp_path: Path) -> None:
    """Our parser and ssh-keygen agree on type and fingerprint."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", tmp_path / "key"], check=True)
    key = parse_public_key((tmp_path / "key.pub").read_text())
    listed = subprocess.run(["ssh-keygen", "-lf", tmp_path / "key.pub"], check=True, capture_output=True, text=True)
    assert key is not None
    assert listed.stdout.split()[1] == key.fingerprint
    assert listed.stdout.split()[-1] == f"({key.label})"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ssh-ed25519",
        f'command="reboot" {LINE}',
        f"ssh-dss {KEY.blob}",
        f"ssh-rsa {KEY.blob}",
        f"ssh-ed25519 {KEY.blob[:-4]}!!!!",
        f"ssh-ed25519 {KEY.blob}=x",
        "ssh-ed25519 AAAA",
    ],
)
def test_what_is_no_plain_key_is_refused(text: str) -> None:
    """Options, unknown types, a type that the key itself contradicts, and bytes that are no base64."""
    assert parse_public_key(text) is None


def test_a_node_cannot_add_a_line_or_an_option() -> None:
    """Only the type and the base64 of a node's key are written, with a comment of ours."""
    hostile = f'{KEY.type} {KEY.blob} x\ncommand="reboot" ssh-ed25519 AAAA'
    key = parse_public_key(hostile)
    assert key == KEY
    assert KEY.format_line("n1") == f"{KEY.type} {KEY.blob} n1"
    assert KEY.format_line('x\n"') == f"{KEY.type} {KEY.blob} aboard"


def test_a_key_is_found_behind_its_options() -> None:
    """A restricted line counts as present; comments and broken lines don't."""
    content = f'# {KEY.blob}\nfrom="10.0.0.0/8",no-pty {LINE}\nssh-ed25519 broken\n'.encode()
    assert list(list_authorized_keys(content)) == [KEY]


def test_known_hosts_names_match_as_in_ssh(tmp_path: Path) -> None:
    """Plain names, ports, patterns, negations and hashes: whatever ssh-keygen -F finds."""
    lines = [f"n1,10.0.0.1 {KEY.type} {KEY.blob}", f"[n2]:2222 {OTHER.type} {OTHER.blob}"]
    third, hashed = make_key("third"), make_key("hashed")
    lines += [f"gpu*,!gpu9 {third.type} {third.blob}", f"secret {hashed.type} {hashed.blob}"]
    file = tmp_path / "known_hosts"
    file.write_text(lines[3] + "\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)
    content = ("\n".join(lines[:3]) + "\n" + file.read_text() + f"@revoked n1 {OTHER.type} {OTHER.blob}\n").encode()
    assert b"secret" not in content
    names = ("n1", "10.0.0.1", "N1", "[n2]:2222", "n2", "gpu3", "gpu9", "secret")
    found = {name: find_known_keys(content, [name]) for name in names}
    assert found == {
        "n1": {KEY},
        "10.0.0.1": {KEY},
        "N1": {KEY},
        "[n2]:2222": {OTHER},
        "n2": set(),
        "gpu3": {third},
        "gpu9": set(),
        "secret": {hashed},
    }
    assert format_known_name("N2", 2222) == "[n2]:2222"
    assert format_known_name("n2", 22) == "n2"
    assert parse_known_host("# n1 SSH-2.0-OpenSSH_9.2") is None


@pytest.mark.parametrize(
    "line",
    [
        f"256 {KEY.fingerprint} n1 (ED25519)",
        f"256 {KEY.fingerprint} n1,10.0.0.1 (ED25519)",
        f"256 {KEY.fingerprint} root@n1 (ED25519)",
        f"n1 {KEY.fingerprint}",
        f"n1: ED25519 {KEY.fingerprint}",
        f"n1 {KEY.type} {KEY.blob}",
        f"# from the console\n\nN1 {KEY.fingerprint}",
    ],
)
def test_fingerprints_are_read_in_the_forms_that_people_have(line: str) -> None:
    """What ssh-keygen -l prints, what a console shows, and known_hosts lines."""
    expected = parse_fingerprints(line, where="file").find(["n1"])
    assert matches_expected(KEY, expected)
    assert not matches_expected(OTHER, expected)
    assert not parse_fingerprints(line, where="file").find(["n2"])
    assert list_key_types(expected) in ((), ("ssh-ed25519",))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing",
        "n1 MD5:12:34",
        f"n1 {KEY.fingerprint}x",
        f"{KEY.fingerprint}",
        f"|1|c2FsdA==|aGFzaA== {KEY.type} {KEY.blob}",
        f"256 {KEY.fingerprint} n1 (ED25519)\nn2 what",
    ],
)
def test_a_file_that_compares_nothing_is_an_error(text: str) -> None:
    """Every line must be understood: a skipped one would be a host key that nobody compared."""
    with pytest.raises(InputError) as error:
        parse_fingerprints(text, where="file")
    assert error.value.code == "trust-fingerprints"


@given(before=st.none() | st.binary(max_size=60), later=st.binary(max_size=30))
def test_undo_restores_every_byte(before: bytes | None, later: bytes) -> None:
    """Over two runs with somebody's edit between them; the edit stays, our lines don't."""
    first, content = plan_change("file", before, [LINE])
    second, untouched = plan_change("file", content, [OTHER.format_line("n2")])
    assert undo_changes(untouched, [first, second]) == before
    edited = append_lines(content, []) + later.replace(b"\r", b"").replace(b"\n", b"") + b"\n"
    third, result = plan_change("file", edited, [OTHER.format_line("n2")])
    left = undo_changes(result, [first, third])
    assert left is not None
    assert LINE.encode() not in left
    assert left.endswith(edited.removeprefix(content))
    assert left.startswith((before or b"").rstrip(b"\n"))


def test_undo_takes_only_our_lines_from_an_edited_file() -> None:
    """Also if the file had no newline at its end, and if nothing else is left in a file of ours."""
    change, content = plan_change("file", b"theirs", [LINE])
    assert content == f"theirs\n{LINE}\n".encode()
    assert undo_changes(content, [change]) == b"theirs"
    assert undo_changes(b"new\n" + content, [change]) == b"new\ntheirs\n"
    assert undo_changes(content + LINE.encode(), [change]) == content
    assert undo_changes(b"theirs", [change]) == b"theirs"
    assert undo_changes(None, [change]) is None
    own, _ = plan_change("file", None, [LINE, "two"])
    assert undo_changes(f"two\n{LINE}\n".encode(), [own]) is None
    empty, _ = plan_change("file", b"", [LINE, "two"])
    assert undo_changes(f"two\n{LINE}\n".encode(), [empty]) == b""


@given(st.binary(max_size=5000))
def test_every_byte_goes_through_the_shell(content: bytes) -> None:
    """Also NUL, quotes, percent signs, backslashes and what is no UTF-8."""
    script = format_content(content).encode()
    assert subprocess.run(["sh"], input=script, check=True, capture_output=True).stdout == content


def edit(home: Path, work: Callable[[HomeFiles, TrustRecords], Awaitable[T]]) -> T:
    """Runs a step in a home over a local shell, with the record that the last step left."""

    async def run() -> T:
        records = TrustRecords(home.parent / "trust")
        shell = await open_local_shell(prelude=PRELUDE)
        try:
            with records.lock():
                return await work(HomeFiles("n1", shell, records.head()), records)
        finally:
            await shell.close()

    return asyncio.run(run())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "my home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    return path


async def add_line(files: HomeFiles, _: TrustRecords) -> int:
    return await files.add_lines(
        AUTHORIZED_KEYS, lambda content: [] if KEY in list_authorized_keys(content) else [LINE]
    )


async def undo_all(files: HomeFiles, _: TrustRecords) -> list[str]:
    """The findings' texts, for what stays."""
    findings: list[Finding] = []
    assert await undo_homes([files], findings) == ["n1"]
    return [finding.seen for finding in findings]


def list_files(home: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(home)): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in sorted(home.rglob("*"))
    }


def test_a_new_home_gets_private_files_and_loses_them_again(home: Path) -> None:
    """The second time there is nothing to add; undo leaves neither file nor directory, also twice."""
    assert edit(home, add_line) == 1
    assert edit(home, add_line) == 0
    assert {name: mode & 0o777 for name, (mode, _) in list_files(home).items()} == {
        ".ssh": 0o700,
        ".ssh/authorized_keys": 0o600,
    }
    assert edit(home, undo_all) == []
    assert list_files(home) == {}
    assert not (home.parent / "trust").exists()
    assert edit(home, undo_all) == []


@pytest.mark.parametrize(("mode", "content"), [(0o600, b""), (0o644, b"# theirs \xff'%s\\n\0")])
def test_an_existing_file_keeps_its_mode_and_gets_its_bytes_back(home: Path, mode: int, content: bytes) -> None:
    """Whatever bytes it has, and without a newline at its end; an empty one stays."""
    (home / ".ssh").mkdir(mode=0o755)
    file = home / AUTHORIZED_KEYS
    file.write_bytes(content)
    file.chmod(mode)
    before = list_files(home)
    assert edit(home, add_line) == 1
    assert file.read_bytes() == append_lines(content, [LINE])
    assert file.stat().st_mode & 0o777 == mode
    edit(home, undo_all)
    assert list_files(home) == before


def test_a_symlink_stays_a_symlink(home: Path) -> None:
    """Dot files are often links into a repository."""
    (home / ".ssh").mkdir()
    (home / "dotfiles").write_text("theirs\n")
    (home / AUTHORIZED_KEYS).symlink_to("../dotfiles")
    edit(home, add_line)
    assert (home / AUTHORIZED_KEYS).is_symlink()
    assert (home / "dotfiles").read_text() == f"theirs\n{LINE}\n"
    edit(home, undo_all)
    assert (home / "dotfiles").read_text() == "theirs\n"


def test_an_interrupted_change_is_undone_as_far_as_it_came(home: Path) -> None:
    """The record comes first: what was recorded but not done is no reason to touch the file."""
    (home / ".ssh").mkdir()
    (home / AUTHORIZED_KEYS).write_text("theirs\n")

    async def record_only(files: HomeFiles, _: TrustRecords) -> None:
        files.record.add_change(plan_change(AUTHORIZED_KEYS, b"theirs\n", [LINE])[0])
        files.record.add_directory(".ssh")

    edit(home, record_only)
    edit(home, undo_all)
    assert (home / AUTHORIZED_KEYS).read_text() == "theirs\n"


def test_nodes_with_one_home_restore_it_together(home: Path) -> None:
    """Whoever changed a file last goes first, so that every byte comes back."""
    (home / ".ssh").mkdir()
    (home / AUTHORIZED_KEYS).write_text("theirs")

    async def change_and_undo() -> list[Finding]:
        records, findings = TrustRecords(home.parent / "trust"), list[Finding]()
        nodes = [Node(name=name) for name in ("n1", "n2")]
        shells = [await open_local_shell(prelude=PRELUDE) for _ in nodes]
        homes = [HomeFiles(node.name, shell, records.of_node(node)) for node, shell in zip(nodes, shells, strict=True)]
        try:
            with records.lock():
                for files, line in ((homes[1], "one"), (homes[0], "two"), (homes[1], "three")):
                    await files.add_lines(AUTHORIZED_KEYS, lambda _, line=line: [line])  # type: ignore[misc]
                keys = await asyncio.gather(*(files.create_key() for files in homes))
                assert keys[0] == keys[1]
                assert await undo_homes(homes, findings) == ["n1", "n2"]
        finally:
            await asyncio.gather(*(shell.close() for shell in shells))
        return findings

    assert asyncio.run(change_and_undo()) == []
    assert (home / AUTHORIZED_KEYS).read_text() == "theirs"
    assert [path.name for path in (home / ".ssh").iterdir()] == ["authorized_keys"]


def test_a_key_of_ours_goes_and_another_one_in_its_place_stays(home: Path) -> None:
    """The comment tells them apart: deleting somebody's private key can't be undone."""

    async def create(files: HomeFiles, _: TrustRecords) -> PublicKey:
        assert await files.find_key() is None
        made = await files.create_key()
        assert await files.find_key() == made
        return made

    made = edit(home, create)
    assert parse_public_key((home / ".ssh/id_ed25519.pub").read_text()) == made
    assert edit(home, undo_all) == []
    assert list_files(home) == {}
    edit(home, create)
    for path in (home / ".ssh").iterdir():
        path.unlink()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / ".ssh/id_ed25519"], check=True)
    before = list_files(home)
    assert edit(home, undo_all) == [".ssh/id_ed25519 is not the key that Aboard created"]
    assert list_files(home) == before


def test_a_key_with_a_passphrase_is_named(home: Path) -> None:
    """A node could not use it without somebody who types."""
    (home / ".ssh").mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", home / ".ssh/id_ed25519"], check=True)

    async def find(files: HomeFiles, _: TrustRecords) -> object:
        return await files.find_key()

    with pytest.raises(AboardError) as error:
        edit(home, find)
    assert error.value.code == "trust-mesh-key-locked"


def test_what_is_no_file_is_left_alone(home: Path) -> None:
    """A directory in the file's place is named, and nothing is recorded."""
    (home / AUTHORIZED_KEYS).mkdir(parents=True)
    with pytest.raises(AboardError, match="not a regular file") as error:
        edit(home, add_line)
    assert error.value.code == "trust-file"
    assert not (home.parent / "trust").exists()


@pytest.mark.parametrize("reply", ["", "file 1 2\n6", "file 1 2\n6x", "file 1'; reboot 2\n61", "none\nfile 1 2\n61"])
def test_a_node_that_describes_its_file_wrongly_is_refused(home: Path, reply: str) -> None:
    """What a node prints is parsed strictly, and becomes part of no script."""

    async def read() -> None:
        shell = await open_local_shell(prelude=f'aboard_look() {{ printf %s "{reply}"; }}')
        try:
            await HomeFiles("n1", shell, TrustRecords(home.parent / "trust").head()).read(KNOWN_HOSTS)
        finally:
            await shell.close()

    with pytest.raises(AboardError) as error:
        asyncio.run(read())
    assert error.value.code == "trust-file"


def test_an_edit_in_between_is_kept(home: Path) -> None:
    """A file that changes between reading and writing is read again."""
    (home / ".ssh").mkdir()
    file = home / KNOWN_HOSTS
    file.write_text("first\n")
    edits = iter(["first\nsecond\n", None])

    def choose(content: bytes) -> list[str]:
        text = next(edits)
        if text:
            file.write_text(text)
        return ["ours"]

    async def add(files: HomeFiles, _: TrustRecords) -> int:
        return await files.add_lines(KNOWN_HOSTS, choose)

    assert edit(home, add) == 1
    assert file.read_text() == "first\nsecond\nours\n"
    edit(home, undo_all)
    assert file.read_text() == "first\nsecond\n"


def test_two_at_once_are_refused(home: Path) -> None:
    """They would edit the same files."""
    records = TrustRecords(home.parent / "trust")
    with records.lock(), pytest.raises(AboardError) as error, records.lock():
        pass
    assert error.value.code == "trust-busy"


def test_a_damaged_record_is_named(home: Path) -> None:
    """Undoing half of it would be worse than nothing."""
    records = TrustRecords(home.parent / "trust")
    records.base.mkdir()
    (records.base / "head.json").write_text('{"name": ""')
    with pytest.raises(AboardError) as error:
        records.head()
    assert error.value.code == "trust-record"


def test_a_record_is_private_and_complete(home: Path) -> None:
    """Files before a change may hold names of other hosts and keys of other people."""
    records = TrustRecords(home.parent / "trust")
    change = FileChange(path="a b", before=b"\xff\0", after="0" * 64, lines=(LINE,))
    with records.lock():
        records.head().add_change(change)
        assert records.head().machine.changes == (change,)
        assert (records.base / "head.json").stat().st_mode & 0o777 == 0o600
        assert records.base.stat().st_mode & 0o777 == 0o700


def test_settings_are_read_as_ssh_prints_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jump hosts come nearest first; the first known_hosts file is the one that ssh writes to."""
    monkeypatch.setenv("HOME", "/home/me")
    settings = parse_settings(
        "user me\nhostname 10.0.0.1\nport 2222\nidentityfile ~/.ssh/id_rsa\nidentityfile /keys/x\n"
        "userknownhostsfile /home/me/.ssh/known_hosts /home/me/.ssh/known_hosts2\nproxyjump a,me@b:22\n"
    )
    assert (settings.host, settings.port, settings.jumps) == ("10.0.0.1", 2222, ("a", "me@b:22"))
    assert settings.identity_files == (Path("/home/me/.ssh/id_rsa"), Path("/keys/x"))
    assert settings.known_hosts == Path("/home/me/.ssh/known_hosts")


@pytest.mark.parametrize("count", [1, 3, ALL_PAIRS, ALL_PAIRS + 1, 500])
def test_every_node_is_logged_in_to(count: int) -> None:
    """All pairs of a small mesh; of a large one, each node has the same few logins in and out."""
    peers = [list_peers(index, count) for index in range(count)]
    reached = [sum(index in each for each in peers) for index in range(count)]
    assert set(reached) == {len(peers[0])}
    assert len(peers[0]) == (count if count <= ALL_PAIRS else 4)
