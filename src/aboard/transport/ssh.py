"""The ssh transport: the user's own OpenSSH, so that their ssh_config, jump hosts, agents and masters work."""

import asyncio
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from aboard.core.cluster.node import Node
from aboard.core.text.shell_quoting import join_argv
from aboard.diagnoses import Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.transport import agent_bootstrap
from aboard.transport.ssh_arguments import STREAM, build_ssh_argv, format_target
from aboard.transport.ssh_log import SshLoginLog, classify_failure, explain_timeout
from aboard.transport.subprocess_stream import start_program
from aboard.transport.transport import ByteStream, OnPhase

# OpenSSH offers it, but after one that takes three times as long where the processor has instructions for AES.
FAST_CIPHER = "aes128-gcm@openssh.com"


class SshTransport:
    """`ssh node python3 …`; `extra` options come first, so that they win over ours and over ssh_config.

    With `bulk`, ssh prefers the cipher that is fastest here, unless ssh_config says which ciphers to use.
    """

    def __init__(self, extra: Sequence[str] = (), *, bulk: bool = False) -> None:
        self._extra = tuple(extra)
        self._bulk = bulk

    async def open(self, node: Node, on_phase: OnPhase) -> ByteStream:
        on_phase("connecting")
        if shutil.which("ssh") is None:
            raise Unreachable(UnreachableReason.NO_SSH, "there is no ssh program on this machine")
        argv = build_ssh_command(node, (*self._extra, *(await choose_cipher(node) if self._bulk else ())))

        log = SshLoginLog()

        def classify_line(line: str) -> str | None:
            phase = log.phase_of(line)
            if phase:
                on_phase(phase)
            return phase

        try:
            return await start_program(argv, classify_line)
        except OSError as error:
            # Not the node's fault: too many processes or open files here.
            raise Unreachable(
                UnreachableReason.UNKNOWN, f"{node.name}: cannot start ssh on this machine: {error}"
            ) from error

    classify = staticmethod(classify_failure)
    explain_timeout = staticmethod(explain_timeout)


def build_ssh_command(node: Node, extra: Sequence[str] = ()) -> tuple[str, ...]:
    """The ssh command that starts an agent on a node."""
    remote = "exec " + join_argv(agent_bootstrap.build_argv(node.python))
    return build_ssh_argv(node, remote, STREAM, first=extra, verbose=True)


async def choose_cipher(node: Node) -> tuple[str, ...]:
    """The option that puts the fast cipher first; none where it isn't fast, or where ssh_config makes a choice."""
    if re.search(r"^(flags|Features)\b.*\baes\b", _read_processor(), re.MULTILINE) is None:
        return ()
    chosen, default = await asyncio.gather(
        _list_ciphers(*format_target(node)), _list_ciphers("-F", os.devnull, "localhost")
    )
    if chosen != default or FAST_CIPHER not in chosen:
        return ()
    return ("-o", "Ciphers=" + ",".join([FAST_CIPHER, *(name for name in chosen if name != FAST_CIPHER)]))


async def _list_ciphers(*arguments: str) -> list[str]:
    """Asks ssh which ciphers it would offer."""
    _code, output, _errors = await print_settings(*arguments)
    found = re.search(r"^ciphers (\S+)$", output, re.MULTILINE)
    return found[1].split(",") if found else []


async def print_settings(*arguments: str) -> tuple[int, str, str]:
    """The exit code, the output and the errors of `ssh -G`, which prints the settings for these arguments."""
    stream, output = await start_program(("ssh", "-G", *arguments), lambda _line: None), b""
    try:
        while part := await stream.read(65536):
            output += part
    finally:
        ending = await stream.close()
    return ending.exit_code or 0, output.decode("utf-8", "replace"), ending.stderr


def _read_processor() -> str:
    try:
        return Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:  # not Linux
        return ""
