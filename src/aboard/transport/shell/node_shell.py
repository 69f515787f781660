"""A POSIX shell on a machine, for the few steps that need no agent: scripts go in over stdin, replies come back.

Everything goes over one connection, so that a password is asked for once. It needs nothing on the machine but `sh`.
"""

import asyncio
import re
import secrets
from collections.abc import Sequence

from aboard.diagnoses import Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass
from aboard.transport.ssh_log import SshLoginLog, classify_failure, explain_timeout
from aboard.transport.subprocess_stream import ProcessStream, start_program
from aboard.transport.transport import StreamEnding

REPLY_SECONDS = 60.0
_LONGEST_REPLY = 32 * 2**20
_PIECE = 1000
_PLAIN = re.compile(rb"[A-Za-z0-9 /+=.,@:_|-]+")
_HOST_KEY = re.compile(r"debug1: Server host key: ([\w@.-]+) (SHA256:[A-Za-z0-9+/]{43})")


@dataclass(frozen=True, kw_only=True)
class ShellReply:
    """What a script printed, and its exit code."""

    code: int
    output: bytes

    @property
    def message(self) -> Untrusted:
        """The last line, which is usually the error."""
        lines = self.output.decode("utf-8", "replace").strip().splitlines()
        return Untrusted(lines[-1] if lines else f"exit code {self.code}")


class NodeShell:
    """One shell; scripts run one after the other, each in a subshell without stdin. Failures raise Unreachable."""

    def __init__(self, stream: ProcessStream, host_key: "list[tuple[str, str]]") -> None:
        self._stream = stream
        self._host_key = host_key
        self._token = secrets.token_hex(12)
        # Grows in place: a reply that comes byte by byte must not take quadratic time.
        self._rest = bytearray()

    @property
    def host_key(self) -> tuple[str, str] | None:
        """The type and the fingerprint of the host key that ssh has verified; the last one is behind all jump hosts."""
        return self._host_key[-1] if self._host_key else None

    async def run(self, script: str, *, seconds: float = REPLY_SECONDS) -> ShellReply:
        """Runs a script; its stderr is part of the output."""
        whole = f"(\n{script}\n) </dev/null 2>&1\nprintf '\\n%s %s\\n' {self._token} $?\n"
        self._stream.write(whole.encode())
        try:
            async with asyncio.timeout(seconds):
                await self._stream.drain()
                return await self._read_reply()
        except TimeoutError:
            missing = explain_timeout(self._stream.ending)[1] or "there is no connection"
            said = f"no reply within {seconds:g} s: {missing}"
            raise Unreachable(
                UnreachableReason.TIMED_OUT if not self._rest else UnreachableReason.SILENT, said
            ) from None

    async def close(self) -> None:
        await self._stream.close()

    async def _read_reply(self) -> ShellReply:
        end = re.compile(rb"\n%b (\d{1,3})\n" % self._token.encode())
        searched = 0
        while (match := end.search(self._rest, searched)) is None:
            searched = max(0, len(self._rest) - len(self._token) - 8)
            part = await self._stream.read(65536)
            if not part or len(self._rest) > _LONGEST_REPLY:
                raise self._explain_end(await self._stream.close())
            self._rest += part
        reply = ShellReply(code=int(match[1]), output=bytes(self._rest[: match.start()]))
        self._rest = self._rest[match.end() :]
        return reply

    def _explain_end(self, ending: StreamEnding) -> Unreachable:
        """Why the shell has ended; after the login, what it printed says more than ssh, such as whom to log in as."""
        reason, said = classify_failure(ending)
        if "logged-in" not in ending.phases:
            return Unreachable(reason, said)
        last = ShellReply(code=ending.exit_code or 0, output=bytes(self._rest[-4096:])).message
        return Unreachable(UnreachableReason.GARBAGE, f"the shell on the node ended: {last.visible(200)}")


async def open_shell(argv: Sequence[str], *, prelude: str, seconds: float, keep_terminal: bool = False) -> NodeShell:
    """Starts a shell with this command, and runs the prelude, whose functions later scripts can use."""
    log = SshLoginLog()
    host_key: list[tuple[str, str]] = []

    def classify_line(line: str) -> str | None:
        if match := _HOST_KEY.match(line):
            host_key.append((match[1], match[2]))
        return log.phase_of(line)

    try:
        stream = await start_program(argv, classify_line, keep_terminal=keep_terminal)
    except FileNotFoundError:
        raise Unreachable(UnreachableReason.NO_SSH, "there is no ssh program on this machine") from None
    except OSError as error:
        raise Unreachable(UnreachableReason.UNKNOWN, f"cannot start ssh on this machine: {error}") from error
    shell = NodeShell(stream, host_key)
    try:
        stream.write(f"{prelude}\n".encode())
        # What start-up files printed is part of this reply, and skipped with it.
        await shell.run(":", seconds=seconds)
    except BaseException:
        await stream.close(hurry=True)
        raise
    return shell


def format_content(content: bytes) -> str:
    """A shell command that prints exactly these bytes."""
    pieces = [content[start : start + _PIECE] for start in range(0, len(content), _PIECE)] or [b""]
    return "{ " + " ".join(f"printf %b '{_encode_piece(piece)}';" for piece in pieces) + " }"


def _encode_piece(piece: bytes) -> str:
    r"""Safe characters stay; other bytes become `\0ooo`, which POSIX defines for printf's %b."""
    return "".join(chr(byte) if _PLAIN.fullmatch(bytes([byte])) else f"\\0{byte:03o}" for byte in piece)
