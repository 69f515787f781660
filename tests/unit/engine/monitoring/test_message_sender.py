"""Messages reach a real web hook or program once, by a real process, whatever the receiver does."""

import asyncio
import json
import os
import signal
import ssl
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import Any

import pytest
from deadlines import wait_until
from webhook_server import SECRET, WebhookServer, serve_webhook

from aboard.core.monitoring.notify_settings import NotifySettings
from aboard.core.monitoring.run_message import RunMessage
from aboard.diagnoses import AboardError
from aboard.engine.monitoring import message_sender, receivers
from aboard.engine.monitoring.message_sender import MessageSender
from aboard.engine.monitoring.notify_problems import SENDER, build_problem, find_notify_problems, read_address
from aboard.engine.monitoring.receivers import MessageProgram, Undelivered, Webhook
from aboard.record.json_lines_journal import Journal, read_entries


def build_message(number: int, at: float | None = None) -> dict[str, Any]:
    at = time() if at is None else at
    return RunMessage(run="otter", events=("failure",), what="has failed", at=at).build_document(number)


class SenderProcess:
    """The real process, with the files of a run."""

    def __init__(self, folder: Path, address: str, **task: Any) -> None:
        self.journal = Journal(folder / "messages.jsonl")
        self.deliveries = folder / "messages-webhook.jsonl"
        files = {"messages": str(folder / "messages.jsonl"), "deliveries": str(self.deliveries)}
        self._task = {"receiver": "webhook", "address": address, "format": "json", **files, "run": "otter", **task}
        self.start()

    def start(self) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(SENDER, stdin=pipe, stdout=pipe, start_new_session=True, bufsize=0)
        self.write(json.dumps({**self._task, "conductor": 4711}).encode() + b"\n")

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def send(self, number: int) -> None:
        self.journal.append(build_message(number))
        self.write(b"\n")

    def end(self, last: bytes = b"end\n") -> str:
        """What it has said."""
        return self.process.communicate(last)[0].decode()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def states(self) -> list[tuple[str, str]]:
        return [(note["id"], note["state"]) for note in read_entries(self.deliveries)]


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    with serve_webhook() as running:
        yield running


@contextmanager
def run_sender(folder: Path, server: WebhookServer, **task: Any) -> Iterator[SenderProcess]:
    sender = SenderProcess(folder, server.address, **task)
    try:
        yield sender
    finally:
        sender.kill()


@pytest.mark.ci
def test_each_message_is_posted_once_and_in_order(tmp_path: Path, server: WebhookServer) -> None:
    """The process ends when all are delivered; it posts nothing to find out whether the receiver is there."""
    with run_sender(tmp_path, server) as sender:
        for number in (1, 2, 3):
            sender.send(number)
        assert sender.end() == ""
        assert server.ids == ["otter-1", "otter-2", "otter-3"]
        assert server.requests[0] == f"HEAD {SECRET}"
        assert [state for _name, state in sender.states] == ["trying", "sent"] * 3
        assert SECRET not in "".join(path.read_text() for path in tmp_path.iterdir())


@pytest.mark.ci
def test_a_sender_that_was_killed_repeats_one_message_once(tmp_path: Path, server: WebhookServer) -> None:
    """Killed while it sends, with the same id; killed again, the message is given up."""
    server.answer = "hang"
    with run_sender(tmp_path, server) as sender:
        sender.send(1)
        for count in (1, 2):
            wait_until(lambda: len(server.ids) == count, 20, "a message")  # noqa: B023 - called at once
            sender.kill()
            sender.start()
        assert "was killed" in sender.end()
    assert server.ids == ["otter-1", "otter-1"]
    assert sender.states == [("otter-1", "trying")] * 2 + [("otter-1", "failed")]


@pytest.mark.ci
def test_a_conductor_that_was_killed_is_a_message(tmp_path: Path, server: WebhookServer) -> None:
    """The end of stdin without a last word; after what it had to say before."""
    with run_sender(tmp_path, server) as sender:
        sender.send(1)
        sender.end(b"")
    assert server.ids == ["otter-1", "otter-lost-4711"]
    assert server.posts[1][1]["headline"] == "otter has lost its conductor, the aboard process that controlled it"


@pytest.mark.ci
def test_ctrl_c_and_scancel_do_not_end_it(tmp_path: Path, server: WebhookServer) -> None:
    """They are for the conductor, whose last message must still arrive."""
    with run_sender(tmp_path, server) as sender:
        wait_until(lambda: server.requests, 20, "the probe")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            sender.process.send_signal(number)
        sender.send(1)
        sender.end()
    assert server.ids == ["otter-1"]


def _post(server: WebhookServer, answer: int | str) -> Undelivered:
    server.answer = answer
    with pytest.raises(Undelivered) as caught:
        Webhook(server.address, "json").send(build_message(1))
    assert SECRET not in str(caught.value)
    return caught.value


def test_what_has_certainly_not_arrived_is_sent_again(server: WebhookServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection, or a server that is busy; an unclear answer is not repeated, so that nobody hears twice."""
    outcomes: dict[int | str, Undelivered] = {each: _post(server, each) for each in (503, 429, 500, 404, 302, "cut")}
    monkeypatch.setattr(receivers, "POST_SECONDS", 1.0)
    outcomes |= {each: _post(server, each) for each in ("hang", "drip")}
    assert [answer for answer, error in outcomes.items() if error.safe] == [503, 429]
    assert str(outcomes[302]) == "the receiver redirects (status 302), which is not followed"
    assert f"GET {SECRET}/elsewhere" not in server.requests
    assert str(outcomes["drip"]) == str(outcomes["hang"]) == "no answer: timed out"
    with pytest.raises(Undelivered, match="refused") as refused:
        Webhook("http://127.0.0.1:1/secret", "json").send(build_message(1))
    assert refused.value.safe
    host = Webhook("https://q7zr9wkx.example/x", "json")
    assert host._describe(ssl.SSLError(1, "invalid for 'q7zr9wkx.example'")) == "invalid for '[host]'"


@pytest.mark.ci
def test_a_certificate_that_nobody_vouches_for_is_refused(
    server: WebhookServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is posted; one that the user trusts is taken, as that of a company's own receiver."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    request = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run([*request, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    address = server.address.replace("http:", "https:")
    with pytest.raises(Undelivered, match="certificate verify failed") as caught:
        Webhook(address, "json").send(build_message(1))
    assert caught.value.safe
    assert server.posts == []
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    Webhook(address, "json").send(build_message(1))
    assert server.ids == ["otter-1"]


def test_a_busy_receiver_gets_the_message_later_and_an_old_one_never(
    server: WebhookServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The problem is reported once, and once that it is over."""
    server.answer = 503
    journal = Journal(tmp_path / "messages.jsonl")
    journal.append(build_message(1, at=time() - 2 * message_sender.OLDEST_SECONDS))
    journal.append(build_message(2))
    sender = MessageSender(Webhook(server.address, "json"), tmp_path / "messages.jsonl", tmp_path / "deliveries.jsonl")
    assert sender.send_waiting() == message_sender.FIRST_PAUSE
    assert sender.send_waiting() == 2 * message_sender.FIRST_PAUSE
    server.answer = 204
    assert sender.send_waiting() is None
    assert server.ids == ["otter-2"] * 3
    said = [json.loads(line)["why"] for line in capfd.readouterr().out.splitlines()]
    assert said == ["it is older than an hour", "the receiver answered with status 503", ""]


def test_a_program_gets_json_and_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stdin, never as an argument; one that hangs is killed with all that it started."""
    out, pid = tmp_path / "out", tmp_path / "pid"
    MessageProgram(["/bin/sh", "-c", f"cat > {out}"]).send(build_message(7))
    assert json.loads(out.read_text())["id"] == "otter-7"
    with pytest.raises(Undelivered, match="exit code 3"):
        MessageProgram(["/bin/sh", "-c", "exit 3"]).send(build_message(1))
    with pytest.raises(Undelivered, match="No such file"):
        MessageProgram(["/no/such/program"]).send(build_message(1))
    monkeypatch.setattr(receivers, "COMMAND_SECONDS", 0.5)
    with pytest.raises(Undelivered, match="was killed"):
        MessageProgram(["/bin/sh", "-c", f"sleep 600 & echo $! > {pid}; wait"]).send(build_message(1))
    child = int(pid.read_text())
    wait_until(lambda: not _is_alive(child), 5, "the end of what the program started")


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("content", "mode", "seen"),
    [
        (None, 0o600, "No such file"),
        ("https://x/SECRET", 0o640, "others can read it"),
        ("SECRET", 0o600, "does not have the address"),
        ("file:///SECRET", 0o600, "does not have the address"),
        ("https://h/a\nb", 0o600, "does not have the address"),
        ("https:///SECRET", 0o600, "does not have the address"),
        ("https://h:99999/SECRET", 0o600, "does not have the address"),
    ],
)
def test_an_address_must_be_private_and_usable(tmp_path: Path, content: str | None, mode: int, seen: str) -> None:
    """What is refused says what to type, and never shows the address."""
    path = tmp_path / "hook"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with pytest.raises(AboardError, match=seen) as caught:
        read_address(NotifySettings(file=str(path)), {})
    assert "SECRET" not in f"{caught.value.seen}{caught.value.fix}"
    assert caught.value.fix


def test_an_address_comes_from_a_variable_or_a_private_file(tmp_path: Path) -> None:
    """With a line end, as editors and cat leave it."""
    path = tmp_path / "hook"
    path.write_text(" https://hooks.example/x\n")
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    assert read_address(NotifySettings(file=str(path)), {}) == "https://hooks.example/x"
    assert read_address(NotifySettings(env="HOOK"), {"HOOK": "https://hooks.example/x"}) == "https://hooks.example/x"
    with pytest.raises(AboardError, match="the variable HOOK is not set on"):
        read_address(NotifySettings(env="HOOK"), {})


@pytest.mark.ci
def test_a_check_finds_a_receiver_that_is_away(server: WebhookServer) -> None:
    """By a request that posts nothing; the finding names this machine and how the user can ask the receiver."""
    settings = NotifySettings(env="HOOK", command=("/no/such/program",))
    (program,) = asyncio.run(find_notify_problems(settings, {"HOOK": server.address}))
    assert program.seen == f"notify.command from {os.uname().nodename}: /no/such/program is not an executable program"
    assert (server.posts, len(server.requests)) == ([], 1)
    found = asyncio.run(find_notify_problems(NotifySettings(env="HOOK"), {"HOOK": "http://127.0.0.1:1/x"}))
    assert [each.code for each in found] == ["notify-unsent"]
    assert found[0].fix.startswith("printenv HOOK | sed")


def test_the_fix_asks_the_receiver_without_showing_the_address(server: WebhookServer, tmp_path: Path) -> None:
    """Typed as printed, it works, and curl's command line does not have the address."""
    path = tmp_path / "it's a hook"
    path.write_text(server.address)
    settings: list[Callable[[], NotifySettings]] = [
        lambda: NotifySettings(env="HOOK"),
        lambda: NotifySettings(file=str(path)),
    ]
    for build in settings:
        fix = build_problem(build(), "webhook", "away").fix
        shown = subprocess.run(
            ["sh", "-c", fix], env={**os.environ, "HOOK": server.address}, capture_output=True, text=True, check=False
        )
        assert "200 OK" in shown.stdout, (fix, shown.stderr)
