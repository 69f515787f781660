"""Headless Chromium over its debugging pipe: opens pages, evaluates in them, photographs them, collects complaints."""

import json
import os
import shutil
import subprocess
import tempfile
from base64 import b64decode
from pathlib import Path
from time import monotonic
from typing import Any, Self

_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--remote-debugging-pipe",
)  # fmt: skip
_PATIENCE = 120.0


class Browser:
    """One browser with one tab."""

    def __init__(self) -> None:
        self._profile = tempfile.mkdtemp(prefix="aboard-browser-")
        child_reads, self._write = os.pipe()
        self._read, child_writes = os.pipe()
        # The browser reads commands from descriptor 3 and writes to 4.
        script = f'exec 3<&{child_reads} 4>&{child_writes}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", "chromium", *_OPTIONS, f"--user-data-dir={self._profile}"],
            pass_fds=(child_reads, child_writes), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(child_reads)
        os.close(child_writes)
        self._buffer = b""
        self._number = 0
        self._session = ""
        self._events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)
        os.close(self._read)
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)

    def open_page(self, path: Path, *, width: int = 1400, dark: bool = False) -> None:
        """Loads a file and waits until it has drawn."""
        self._events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.absolute().as_uri())
        self._wait_for("Page.loadEventFired")
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        reply = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in reply:
            raise RuntimeError(json.dumps(reply["exceptionDetails"])[:2000])
        return reply["result"].get("value")

    def photograph(self, path: Path, *, clip: dict[str, float] | None = None) -> None:
        """A PNG of the whole page, or of a part of it."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        part = clip or {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 12_000)}
        reply = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip={**part, "scale": 1})
        path.write_bytes(b64decode(reply["data"]))

    @property
    def complaints(self) -> list[str]:
        """Errors, warnings and refusals of this page, and everything that it asked a network for."""
        self.call("Runtime.evaluate", expression="0")
        found = []
        for event in self._events:
            params = event.get("params", {})
            match event.get("method"):
                case "Runtime.exceptionThrown":
                    found.append(json.dumps(params["exceptionDetails"])[:500])
                case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                    found.append(json.dumps(params["args"])[:500])
                case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                    found.append(params["entry"]["text"])
                case "Network.requestWillBeSent" if not params["request"]["url"].startswith(("file:", "data:")):
                    found.append(f"request: {params['request']['url']}")
                case _:
                    pass
        return found

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        deadline = monotonic() + _PATIENCE
        while monotonic() < deadline:
            reply = self._receive()
            if reply.get("id") == self._number:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']}")
                result: dict[str, Any] = reply["result"]
                return result
            self._events.append(reply)
        raise TimeoutError(method)

    def _wait_for(self, method: str) -> None:
        deadline = monotonic() + _PATIENCE
        while not any(event.get("method") == method for event in self._events):
            if monotonic() > deadline:
                raise TimeoutError(method)
            self._events.append(self._receive())

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._read, 1 << 20)
            if not data:
                raise ConnectionError("the browser has ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        received: dict[str, Any] = json.loads(message)
        return received
