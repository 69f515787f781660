"""The port of a node's copier, which is open while a run trains: strangers get nothing, peers get checkpoints only."""

import hmac
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from threading import Thread
from typing import Any, Self

import pytest
from copiers import KEY, SOON, CopierProcess, run_copiers, save_parts, wait_for_state
from deadlines import slowness, wait_until

from aboard.agent import frames
from aboard.agent.copies.sealed_frames import SealedFrames

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


def prove(key: bytes, role: bytes, nonces: bytes, dialer: bytes, listener: int) -> bytes:
    return hmac.digest(key, b"aboard peer " + role + nonces + dialer + listener.to_bytes(4, "big"), "sha256")


class Peer:
    """A connection to a copier, and the copier's proof: nothing for a stranger."""

    def __init__(self, port: int, key: bytes) -> None:
        self.link = socket.create_connection(("127.0.0.1", port), timeout=SOON * slowness())
        nonce, own, me = read(self.link, 32), os.urandom(32), PEER.to_bytes(4, "big")
        self.link.sendall(own + me + prove(key, b"dial", nonce + own, me, 0))
        self.proof = read(self.link, 32)
        roles = (b"dialer sends", b"listener sends")
        first, second = (prove(key, role, nonce + own, me, 0) for role in roles)
        self.sealed = SealedFrames((first, second))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.link.close()

    def ask(self, **request: object) -> tuple[dict[str, object], bytes]:
        self.link.sendall(self.sealed.pack(request))
        reply, tail = self.sealed.unpack(self.read_frame(), hashed=f"{STEP}/rank-" in str(request.get("name")))
        return reply, bytes(tail)

    def read_part(self, folder: str, name: str, at: int = 0) -> tuple[dict[str, object], bytes]:
        """The reply to a request for the next 100 bytes of a file, and these bytes."""
        return self.ask(do="read", folder=folder, name=name, at=at, bytes=100)

    def read_frame(self) -> memoryview:
        return memoryview(read(self.link, int.from_bytes(read(self.link, 4), "big")))


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


def test_a_stranger_at_a_copiers_port_gets_no_byte_of_a_checkpoint(copier: CopierProcess) -> None:
    """With another key, or with garbage."""
    with Peer(copier.port, bytes(32)) as stranger:
        assert stranger.proof == b""
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
    with Peer(copier.port, KEY) as peer:
        assert len(peer.proof) == 32
        reply, data = peer.read_part(folder, name)
        assert ("error" in reply or "failed" in reply, data) == (True, b"")
        _reply, data = peer.read_part("", f"{STEP}/rank-00000-000.safetensors", at=990)
        assert len(data) == 10


@pytest.mark.parametrize("do", ["sums", "leave", "tree-list", "receive"])
def test_a_peer_can_only_list_and_read(copier: CopierProcess, do: str) -> None:
    """What the head may ask a file reader for is more; and a list has neither links nor other files."""
    with Peer(copier.port, KEY) as peer:
        assert "error" in peer.ask(do=do, folder="", names=["other"])[0]
        listed: dict[str, Any] = peer.ask(do="list", folder="", page=0)[0]
    assert [(name, kind) for name, kind, *_rest in listed["entries"]] == [("trackers", "link")]


def test_a_peer_that_asks_for_garbage_is_dropped(copier: CopierProcess) -> None:
    for garbage in (b"\xff" * 64, frames.pack({"x": "x" * 9000}), frames.pack({"at": "x"})[:-1] + b"x"):
        with Peer(copier.port, KEY) as peer:
            peer.link.sendall(garbage)
            assert read(peer.link, 10_000) == b""
    for wrong in ({"folder": 1}, {"at": "x"}, {"do": "read", "bytes": "x"}, {"do": "read", "folder": "", "name": []}):
        with Peer(copier.port, KEY) as peer:
            assert "error" in peer.ask(**wrong)[0]
    with Peer(copier.port, KEY) as peer:
        assert len(peer.proof) == 32


def test_a_request_that_is_not_the_peers_next_one_is_not_answered(copier: CopierProcess) -> None:
    """Without a seal, changed on the way, or sent once more: whoever is between two nodes gets nothing."""
    request = {"do": "read", "folder": "", "name": f"{STEP}/rank-00000-000.safetensors", "at": 0, "bytes": 100}

    def change(data: bytes) -> bytes:
        return data.replace(b"rank-00000", b"rank-00001")

    for spoil in (lambda _data: frames.pack(request), change, lambda data: data[:-1] + bytes([data[-1] ^ 1])):
        with Peer(copier.port, KEY) as peer:
            peer.link.sendall(spoil(peer.sealed.pack(request)))
            assert read(peer.link, 1) == b""
    with Peer(copier.port, KEY) as peer:
        sealed = peer.sealed.pack(request)
        peer.link.sendall(sealed + sealed)
        assert len(peer.read_frame()) > 100
        assert read(peer.link, 1) == b""


Answer = Callable[[socket.socket, SealedFrames, dict[str, Any]], None]


class LyingPeer:
    """A node that has the key, and answers each request as it likes."""

    def __init__(self, answer: Answer) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._answer = answer
        Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            with suppress(OSError), self._listener.accept()[0] as link:
                nonce = os.urandom(32)
                link.sendall(nonce)
                answer = read(link, 68)
                nonces, number = nonce + answer[:32], answer[32:36]
                link.sendall(prove(KEY, b"listen", nonces, number, PEER))
                roles = (b"listener sends", b"dialer sends")
                first, second = (prove(KEY, role, nonces, number, PEER) for role in roles)
                sealed = SealedFrames((first, second))
                while size := int.from_bytes(read(link, 4), "big"):
                    self._answer(link, sealed, sealed.unpack(memoryview(read(link, size)))[0])
            if self._listener.fileno() < 0:
                return

    def close(self) -> None:
        self._listener.close()


def send_endless_file(link: socket.socket, _sealed: SealedFrames, _request: dict[str, Any]) -> None:
    link.sendall((2**32 - 1).to_bytes(4, "big") + b"x" * 100_000)


def send_other_content(link: socket.socket, sealed: SealedFrames, _request: dict[str, Any]) -> None:
    link.sendall(sealed.pack({}, b"x" * 1000, hashed=True))


def send_more_than_asked_for(link: socket.socket, sealed: SealedFrames, _request: dict[str, Any]) -> None:
    link.sendall(sealed.pack({}, b"x" * 100_000, hashed=True))


def send_nothing(link: socket.socket, sealed: SealedFrames, _request: dict[str, Any]) -> None:
    link.sendall(sealed.pack({}, hashed=True))


@pytest.mark.parametrize("lie", [send_endless_file, send_other_content, send_more_than_asked_for, send_nothing])
def test_a_peer_that_lies_about_a_part_writes_no_file(tmp_path: Path, lie: Answer) -> None:
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


@contextmanager
def run_beside(root: Path, answer: Answer) -> Iterator[tuple[CopierProcess, LyingPeer]]:
    """A copier that the head lets fetch metrics and trackers from a lying peer, as before a resume."""
    (root / "trackers").mkdir(parents=True)
    (root / "train.py").write_text("mine")
    peer, copier = LyingPeer(answer), CopierProcess(root, 0)
    try:
        copier.ask("peers", peers=[[PEER, "127.0.0.1", peer.port, [1]]])
        copier.ask("fetch", files=[], beside=PEER)
        yield copier, peer
    finally:
        copier.close()
        peer.close()


def list_tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def offer(name: str, modified: int = 10) -> Answer:
    """A peer that offers one file of this name, and sends it."""

    def answer(link: socket.socket, sealed: SealedFrames, request: dict[str, Any]) -> None:
        if request["do"] == "list":
            link.sendall(sealed.pack({"entries": [[name, "file", 4, 0o644, modified, ""]], "done": True}))
        else:
            link.sendall(sealed.pack({}, b"evil", hashed=name.startswith("step-")))

    return answer


@pytest.mark.parametrize(
    "name",
    ["train.py", ".ssh/authorized_keys", "sitecustomize.py", "step-000002/rank-00000-000.safetensors",
     "step-000002/manifest.json", "trackers/../train.py", "metrics.jsonl/../train.py", ".lock", ".first-node/x"],
)  # fmt: skip
def test_a_peer_writes_no_file_but_metrics_and_trackers(tmp_path: Path, name: str) -> None:
    """The table of names that a sender keeps to is the receiver's as well; the peer is named with what it offered."""
    root = tmp_path / "out"
    with run_beside(root, offer(name)) as (copier, peer):
        status = copier.ask("status", seconds=SOON)
        assert status["left"] == 0
        [[_checkpoint, what, why]] = status["lacking"]
        assert what == "metrics"
        assert why.startswith(f"127.0.0.1 port {peer.port}: it offers {name!r}, which is none of the files")
    assert (root / "train.py").read_text() == "mine"
    assert list_tree(tmp_path) == ["out/train.py"]


def test_a_peer_makes_no_file_in_place_of_a_directory(tmp_path: Path) -> None:
    """The trainer could not make the directory of its trackers any more."""
    root = tmp_path / "out"
    with run_beside(root, offer("trackers")) as (copier, _peer):
        (root / "trackers").rmdir()
        copier.ask("fetch", files=[], beside=PEER)
        [*_first, [_checkpoint, _what, why]] = copier.ask("status", seconds=SOON)["lacking"]
    assert "it offers 'trackers', which is none of the files" in why
    assert not (root / "trackers").is_file()


def test_a_peer_that_lists_other_names_each_time_does_not_fill_the_disk(tmp_path: Path) -> None:
    """The limits of files and bytes are those of the directory, not of one list."""
    lists: list[int] = []

    def answer(link: socket.socket, sealed: SealedFrames, request: dict[str, Any]) -> None:
        if request["do"] == "list":
            lists.append(0)
            names = [f"trackers/{len(lists)}-{number}" for number in range(450)]
            entries = [[name, "file", 4, 0o644, 10, ""] for name in names]
            link.sendall(sealed.pack({"entries": entries, "done": True}))
        else:
            link.sendall(sealed.pack({}, b"evil"))

    root = tmp_path / "out"
    with run_beside(root, answer) as (copier, _peer):
        for _ in range(5):
            copier.ask("status", seconds=SOON)
            copier.ask("fetch", files=[], beside=PEER)
        copier.ask("status", seconds=SOON)
    assert len(lists) == 6
    assert len(list_tree(root / "trackers")) == 2000


def test_a_peer_that_offers_metrics_and_trackers_is_believed(tmp_path: Path) -> None:
    """The restriction of names stops nothing that a copy is for."""
    for number, name in enumerate(["metrics.jsonl", "metrics.old-1.jsonl", "trackers/tensorboard/events.1"]):
        root = tmp_path / f"out{number}"
        with run_beside(root, offer(name)) as (copier, _peer):
            assert copier.ask("status", seconds=SOON)["lacking"] == []
        assert (root / name).read_text() == "evil"


@pytest.mark.parametrize(
    "entry",
    [["metrics.jsonl", "file", 4, 0o644, 10**30, ""], ["metrics.jsonl", "file", 10**30, 0o644, 1, ""],
     ["metrics.jsonl", "file", -1, 0o644, 1, ""], ["metrics.jsonl", "file", True, 0o644, 1, ""], [], 7,
     ["metrics.jsonl", "file", 4, 0o644, float("inf"), ""], [["x"], "file", 4, 0o644, 1, ""]],
)  # fmt: skip
def test_a_crafted_list_stops_no_copier(tmp_path: Path, entry: object) -> None:
    """A time of 10^30, as any other wrong value, is reported by name, and the next request is followed."""

    def answer(link: socket.socket, sealed: SealedFrames, request: dict[str, Any]) -> None:
        if request["do"] == "list":
            link.sendall(sealed.pack({"entries": [entry], "done": True}))
        else:
            link.sendall(sealed.pack({}, b"right", hashed=True))

    with run_beside(tmp_path / "out", answer) as (copier, _peer):
        [[_checkpoint, _what, why]] = copier.ask("status", seconds=SOON)["lacking"]
        assert "its list is none" in why
        part = "rank-00000-000.safetensors"
        copier.ask("fetch", files=[[STEP, part, 5, sha256(b"right").hexdigest(), [PEER]]])
        assert copier.ask("status", seconds=SOON)["lacking"] == []
    assert (tmp_path / "out" / STEP / part).read_bytes() == b"right"


def relay(port: int, answer: Callable[[socket.socket, bytes], None]) -> tuple[socket.socket, int]:
    """Somebody between two nodes without the key: passes the handshake on, then answers in the listener's place."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                dialer = listener.accept()[0]
                with dialer, socket.create_connection(("127.0.0.1", port)) as behind:
                    dialer.sendall(read(behind, 32))
                    behind.sendall(read(dialer, 68))
                    dialer.sendall(read(behind, 32))
                    while size := read(dialer, 4):
                        request = size + read(dialer, int.from_bytes(size, "big"))
                        behind.sendall(request)
                        size = read(behind, 4)
                        answer(dialer, size + read(behind, int.from_bytes(size, "big")))

    Thread(target=serve, daemon=True).start()
    return listener, listener.getsockname()[1]


def answer_freely(dialer: socket.socket, _sealed: bytes) -> None:
    listed = {"entries": [["metrics.jsonl", "file", 4, 0o644, 10, ""]], "done": True}
    dialer.sendall(frames.pack_tailed(listed, bytes(32)))


def change_a_figure(dialer: socket.socket, sealed: bytes) -> None:
    dialer.sendall(sealed.replace(b"right", b"wrong"))


def repeat_the_first_answer() -> Callable[[socket.socket, bytes], None]:
    known: list[bytes] = []

    def answer(dialer: socket.socket, sealed: bytes) -> None:
        known.append(sealed)
        dialer.sendall(known[0])

    return answer


@pytest.mark.parametrize("forge", [answer_freely, change_a_figure, repeat_the_first_answer()])
def test_a_man_in_the_middle_who_relays_the_handshake_writes_nothing(
    copier: CopierProcess, tmp_path: Path, forge: Callable[[socket.socket, bytes], None]
) -> None:
    """Only who has the key can seal an answer, its number and content without a hash; he is rejected and named."""
    copy = copier.root / ".first-node"
    copy.mkdir()
    (copy / "metrics.jsonl").write_text("right")
    target = tmp_path / "target"
    target.mkdir()
    listener, port = relay(copier.port, forge)
    with listener, closing(CopierProcess(target, 1)) as victim:
        victim.ask("peers", peers=[[0, "127.0.0.1", port, [0]]])
        victim.ask("fetch", files=[], beside=0)
        [[_checkpoint, what, why]] = victim.ask("status", seconds=SOON)["lacking"]
    assert what == "metrics"
    assert why == (
        f"127.0.0.1 port {port}: its answer has no valid seal: somebody between the two nodes has changed or made it"
    )
    assert not any(path.stat().st_size for path in target.rglob("*") if path.is_file())
