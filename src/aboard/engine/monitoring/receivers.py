"""Posts a message to a web hook, or starts a program with it; each within a time limit."""

import json
import os
import shutil
import signal
import subprocess
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPException
from types import FrameType
from typing import Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import unquote_to_bytes, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from aboard.core.monitoring.message_formats import format_body
from aboard.diagnoses.untrusted import escape_text

POST_SECONDS = 10.0
COMMAND_SECONDS = 30.0
# The answers of a server that asks to be asked again.
_BUSY = (429, 503)
_SUCCESS, _REDIRECT = range(200, 300), range(300, 400)


class Undelivered(Exception):
    """Why; `safe` to repeat if the receiver has certainly not got it."""

    def __init__(self, why: str, *, safe: bool = False) -> None:
        super().__init__(why)
        self.safe = safe


class Receiver(Protocol):
    """Somebody who is to hear of a run."""

    def probe(self) -> None:
        """Raises Undelivered if a message would not arrive; sends none."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Delivers a message, or raises Undelivered."""


class _NoRedirects(HTTPRedirectHandler):
    """An address that was checked must not become another one."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Webhook:
    """An address that messages are posted to; nothing that it raises contains it."""

    def __init__(self, address: str, form: str) -> None:
        # A user and a password in it are not for http.client, whose errors would quote them.
        url = urlsplit(address)
        self._login, _, place = url.netloc.rpartition("@")
        self._address = urlunsplit(url._replace(netloc=place))
        self._form = form
        # With the proxies that the environment names, and with certificates verified.
        self._opener = build_opener(_NoRedirects)

    def probe(self) -> None:
        # Any answer will do: few services know this method, and none posts anything for it.
        self._ask("HEAD", None)

    def send(self, message: Mapping[str, Any]) -> None:
        status = self._ask("POST", message)
        if status in _REDIRECT:
            raise Undelivered(f"the receiver redirects (status {status}), which is not followed")
        if status not in _SUCCESS:
            raise Undelivered(f"the receiver answered with status {status}", safe=status in _BUSY)

    def _ask(self, method: str, message: Mapping[str, Any] | None) -> int:
        data = None if message is None else json.dumps(format_body(message, self._form)).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "aboard"}
        if self._login:
            headers["Authorization"] = "Basic " + b64encode(unquote_to_bytes(self._login)).decode()
        if message is not None:
            headers["Idempotency-Key"] = message["id"]
        try:
            request = Request(self._address, data=data, headers=headers, method=method)  # noqa: S310 - see read_address
            # What the receiver writes is not read.
            with _limit_time(POST_SECONDS), self._opener.open(request, timeout=POST_SECONDS) as response:
                return int(response.status)
        except HTTPError as error:
            error.close()
            return error.code
        except URLError as error:
            # It failed before the request was complete.
            raise Undelivered(
                self._describe(error.reason if isinstance(error.reason, OSError) else error), safe=True
            ) from None
        except (OSError, HTTPException, ValueError) as error:
            raise Undelivered(f"no answer: {self._describe(error)}") from None

    def _describe(self, error: object) -> str:
        """The system's own words, or the class: other texts may quote the address. Errors of TLS have the host."""
        if isinstance(error, TimeoutError):
            return "timed out"
        text = (isinstance(error, OSError) and error.strerror) or type(error).__name__
        return escape_text(text.replace(urlsplit(self._address).hostname or self._address, "[host]"), 300)


class MessageProgram:
    """A program that gets each message on its stdin."""

    def __init__(self, command: list[str]) -> None:
        self._command = command

    def probe(self) -> None:
        if shutil.which(self._command[0]) is None:
            raise Undelivered(f"{escape_text(self._command[0], 200)} is not an executable program")

    def send(self, message: Mapping[str, Any]) -> None:
        null = subprocess.DEVNULL
        try:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True
            )
        except OSError as error:
            raise Undelivered(f"can't be started: {error.strerror}") from None
        try:
            process.communicate(json.dumps(message).encode() + b"\n", timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise Undelivered(f"did not end within {COMMAND_SECONDS:.0f} s, and was killed") from None
        if process.returncode:
            raise Undelivered(f"failed with exit code {process.returncode}")


@contextmanager
def _limit_time(seconds: float) -> Iterator[None]:
    """Raises TimeoutError when the time is over: a socket's own timeout begins again with each byte."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
