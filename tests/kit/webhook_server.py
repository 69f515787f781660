"""A real web hook on loopback that records what is posted to it, and answers as it is told."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from time import time
from typing import Any

SECRET = "/services/T0000000/B0000000/q7Zr9wKxLmN2pVtY4sHdGfJc"  # noqa: S105 - of nothing


class WebhookServer(ThreadingHTTPServer):
    """`answer` is a status; or, to a post, `hang` (no answer), `drip` (endless headers) or `cut` (no connection)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.posts: list[tuple[float, dict[str, Any]]] = []
        self.requests: list[str] = []
        self.logins: list[str] = []
        self.answer: int | str = 200
        self.closing = Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{SECRET}"

    @property
    def ids(self) -> list[str]:
        return [body["id"] for _at, body in self.posts]


@contextmanager
def serve_webhook() -> Iterator[WebhookServer]:
    server = WebhookServer()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Answers(BaseHTTPRequestHandler):
    server: WebhookServer

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posts.append((time(), body))
        self._answer()

    def _answer(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        self.server.logins += self.headers.get_all("Authorization", [])
        answer = self.server.answer
        if self.command == "HEAD" and isinstance(answer, str):
            answer = 200
        if answer == "hang":
            self.server.closing.wait()
        elif answer == "drip":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
            with suppress(OSError):
                while not self.server.closing.wait(0.2):
                    self.wfile.write(b"x")
        elif isinstance(answer, int):
            self.send_response(answer)
            self.send_header("Location", f"{self.path}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass
