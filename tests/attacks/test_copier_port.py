"""The port of a node's copier, which is open while a run trains: strangers get nothing, peers get checkpoints only."""

import hmac
import json
import os
import socket
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from threading import Thread

import pytest
from copiers import KEY, SOON, CopierProcess, run_copiers, save_parts, wait_for_state
from deadlines import slowness, wait_until

from aboard.agent import frames

PEER = 9
STEP = "step-000002"


@pytest.fixture
def copier(tmp_path: Path) -> Iterator[CopierProcess]:
    """One copier, whose output directory has a checkpoint, links out of it, and other files."""
    root = tmp_path / "home" / "out"
    save_parts([root], 2, [1000])
    (tmp_path / "home" / "key").write_text("secret")
    (root / "other").write_text("secret")
    (root / STEP / "rank-link").symlink_to(tmp_path / "home" / "key")
    (root / "step-000003").symlink_to(tmp_path / "home", target_is_directory=True)
    (root / "trackers").symlink_to(tmp_path / "home", target_is_directory=True)
    os.mkfifo(root / STEP / "rank-pipe")
    with run_copiers(root) as copiers:
        yield copiers[0]


def connect(port: int, key: bytes) -> tuple[socket.socket, bytes]:
    """A connection, and the listener's proof: nothing for a stranger."""
    link = socket.create_connection(("127.0.0.1", port), timeout=SOON * slowness())
    nonce, own = read(link, 32), os.urandom(32)
    ends = PEER.to_bytes(4, "big") + (0).to_bytes(4, "big")
    proof = hmac.digest(key, b"aboard peer dial" + nonce + own + ends, "sha256")
    link.sendall(own + PEER.to_bytes(4, "big") + proof)
    return link, read(link, 32)


def read(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        try:
            more = link.recv(count - len(data))
        except ConnectionResetError:
            break
        if not more:
            break
        data += more
    return data


def ask(link: socket.socket, folder: str, name: str, at: int = 0) -> tuple[dict[str, object], bytes]:
    """The reply to a request for the next 100 bytes of a file, and these bytes."""
    link.sendall(frames.pack({"do": "read", "folder": folder, "name": name, "at": at, "bytes": 100}))
    reply, tail = frames.unpack_parts(read(link, int.from_bytes(read(link, 4), "big")))
    return reply, bytes(tail)


def test_a_stranger_at_a_copiers_port_gets_no_byte_of_a_checkpoint(copier: CopierProcess) -> None:
    """With another key, or with garbage."""
    link, proof = connect(copier.port, bytes(32))
    with link:
        assert proof == b""
    with socket.create_connection(("127.0.0.1", copier.port), timeout=SOON) as garbage:
        read(garbage, 32)
        garbage.sendall(b"GET / HTTP/1.1\r\n" * 100)
        assert read(garbage, 1) == b""


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("", f"{STEP}/../../key"),
        ("", f"{STEP}/rank-link"),
        ("", f"{STEP}/rank-pipe"),
        ("", f"{STEP}/copies.json"),
        ("", "step-000003/rank-00000-000.safetensors"),
        ("", "other"),
        ("", "../key"),
        ("", "trackers/key"),
        ("../", "metrics.jsonl"),
        (STEP, "rank-00000-000.safetensors"),
        (".first-node", "../other"),
        (".first-node", "metrics.jsonl"),
    ],
)
def test_a_peer_reads_nothing_but_checkpoints(copier: CopierProcess, folder: str, name: str) -> None:
    """Names that lead elsewhere, links, pipes and other files are refused; the next request is answered."""
    link, proof = connect(copier.port, KEY)
    with link:
        assert len(proof) == 32
        reply, data = ask(link, folder, name)
        assert ("error" in reply or "failed" in reply, data) == (True, b"")
        _reply, data = ask(link, "", f"{STEP}/rank-00000-000.safetensors", at=990)
        assert len(data) == 10


@pytest.mark.parametrize("do", ["sums", "leave", "tree-list", "receive"])
def test_a_peer_can_only_list_and_read(copier: CopierProcess, do: str) -> None:
    """What the head may ask a file reader for is more; and a list has neither links nor other files."""
    link, _proof = connect(copier.port, KEY)
    with link:
        link.sendall(frames.pack({"do": do, "folder": "", "names": ["other"]}))
        assert "error" in frames.unpack(read(link, int.from_bytes(read(link, 4), "big")))
        link.sendall(frames.pack({"do": "list", "folder": "", "page": 0}))
        listed = frames.unpack(read(link, int.from_bytes(read(link, 4), "big")))
    assert [(name, kind) for name, kind, *_rest in listed["entries"]] == [("trackers", "link")]


def test_a_peer_that_asks_for_garbage_is_dropped(copier: CopierProcess) -> None:
    for garbage in (b"\xff" * 64, frames.pack({"x": "x" * 9000}), frames.pack({"at": "x"})[:-1] + b"x"):
        link, _proof = connect(copier.port, KEY)
        with link:
            link.sendall(garbage)
            assert read(link, 10_000) == b""
    for garbage in (frames.pack({"folder": 1}), frames.pack({"at": "x"}), frames.pack({"do": "read", "bytes": "x"})):
        link, _proof = connect(copier.port, KEY)
        with link:
            link.sendall(garbage)
            assert "error" in frames.unpack(read(link, int.from_bytes(read(link, 4), "big")))
    link, proof = connect(copier.port, KEY)
    link.close()
    assert len(proof) == 32


class LyingPeer:
    """A node that has the key, and answers each request as it likes."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._answer = answer
        Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                link = self._listener.accept()[0]
                nonce = os.urandom(32)
                link.sendall(nonce)
                answer = read(link, 68)
                own, number = answer[:32], answer[32:36]
                ends = number + PEER.to_bytes(4, "big")
                link.sendall(hmac.digest(KEY, b"aboard peer listen" + nonce + own + ends, "sha256"))
                read(link, int.from_bytes(read(link, 4), "big"))
                self._answer(link)
            except OSError:
                return

    def close(self) -> None:
        self._listener.close()


def send_endless_file(link: socket.socket) -> None:
    link.sendall((2**32 - 1).to_bytes(4, "big") + b"x" * 100_000)


def send_other_content(link: socket.socket) -> None:
    link.sendall(frames.pack_tailed({}, b"x" * 1000))


def send_more_than_asked_for(link: socket.socket) -> None:
    link.sendall(frames.pack_tailed({}, b"x" * 100_000))


def send_nothing(link: socket.socket) -> None:
    link.sendall(frames.pack_tailed({}, b""))


@pytest.mark.parametrize("lie", [send_endless_file, send_other_content, send_more_than_asked_for, send_nothing])
def test_a_peer_that_lies_about_a_part_writes_no_file(tmp_path: Path, lie: Callable[[socket.socket], None]) -> None:
    """Size and hash are those of the record on this disk; what comes beyond it is not read."""
    root = tmp_path / "out"
    (root / STEP).mkdir(parents=True)
    part = ["rank-00001-000.safetensors", 1000, sha256(b"right").hexdigest()]
    record = {"serial": 1, "leader": 0, "source": 1, "state": "waiting", "files": [part]}
    (root / STEP / "copies.json").write_text(json.dumps(record))
    peer = LyingPeer(lie)
    copier = CopierProcess(root, 0)
    try:
        copier.ask("peers", peers=[[0, "127.0.0.1", copier.port, [0]], [PEER, "127.0.0.1", peer.port, [1]]])
        wait_until(lambda: copier.read().get("uncopied"), SOON)
        assert {path.name for path in (root / STEP).iterdir()} <= {*("copies.json", f".aboard-{part[2]}.part")}
        assert sum(path.stat().st_size for path in (root / STEP).iterdir()) < 2000
    finally:
        copier.close()
        peer.close()


@pytest.mark.parametrize("name", ["../escaped", "a/b", "", ".."])
def test_a_record_that_names_a_file_elsewhere_is_ignored(tmp_path: Path, name: str) -> None:
    """A rank writes the record, but no copier follows it out of the checkpoint's directory."""
    roots = [tmp_path / "a", tmp_path / "b"]
    save_parts(roots, 2, [10, 10])
    path = roots[1] / STEP / "copies.json"
    record = json.loads(path.read_text())
    record["files"].append([name, 2, sha256(b"{}").hexdigest()])
    path.write_text(json.dumps(record))
    with run_copiers(*roots):
        wait_for_state(roots[0], 2, "copied")
    assert json.loads(path.read_text())["state"] == "waiting"
    assert not (roots[1] / "escaped").exists()
