"""A server that records what MLflow's own client sends, and one that accepts connections and never answers."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlparse


class RecordingServer(ThreadingHTTPServer):
    """Knows one experiment and one run."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Answers)
        self.experiment: str | None = None
        self.run: dict[str, Any] | None = None
        self.metrics: list[tuple[str, int, float]] = []
        self.params: dict[str, str] = {}
        self.headers: set[str] = set()
        self.status = 200

    def steps_of(self, name: str) -> list[int]:
        return [step for key, step, _ in self.metrics if key == name]


@contextmanager
def serve_mlflow(port: int = 0) -> Iterator[RecordingServer]:
    server = RecordingServer(port)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def hang_silently() -> Iterator[socket.socket]:
    """A listener whose queue takes connections that nobody answers."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield listener


class _Answers(BaseHTTPRequestHandler):
    server: RecordingServer

    def do_GET(self) -> None:
        url = urlparse(self.path)
        self._answer(url.path.rpartition("mlflow/")[2], {key: value[0] for key, value in parse_qs(url.query).items()})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(self.path.rpartition("mlflow/")[2], json.loads(body))

    def _answer(self, call: str, asked: dict[str, Any]) -> None:
        server = self.server
        server.headers.add(self.headers.get("Authorization", ""))
        status, reply = server.status, self._reply(call, asked) if server.status == 200 else {}
        if reply is None:
            status, reply = 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"}
        data = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _reply(self, call: str, asked: dict[str, Any]) -> dict[str, Any] | None:
        server = self.server
        if call == "experiments/get-by-name":
            named = server.experiment == asked["experiment_name"]
            return {"experiment": {"experiment_id": "1", "name": server.experiment}} if named else None
        if call == "experiments/create":
            server.experiment = asked["name"]
            return {"experiment_id": "1"}
        if call == "runs/search":
            return {"runs": [server.run] if server.run else []}
        if call == "runs/create":
            info = {"run_id": "r1", "run_uuid": "r1", "experiment_id": "1", "status": "RUNNING", "artifact_uri": "x"}
            server.run = {"info": info | {"run_name": asked.get("run_name"), "start_time": 1}, "data": {}}
        if call == "runs/update" and server.run:
            server.run["info"]["status"] = asked["status"]
            return {"run_info": server.run["info"]}
        if call == "runs/log-batch":
            server.metrics += [(each["key"], int(each["step"]), each["value"]) for each in asked.get("metrics", ())]
            server.params |= {each["key"]: each["value"] for each in asked.get("params", ())}
            return {}
        return {"run": server.run}

    def log_message(self, *words: object) -> None:
        pass
