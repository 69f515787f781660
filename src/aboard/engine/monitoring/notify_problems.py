"""Reads the address that messages go to, and says why messages would not arrive."""

import asyncio
import json
import os
import stat
import sys
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from aboard.core.cluster.cluster import Cluster
from aboard.core.decoding import parse_json
from aboard.core.monitoring.notify_settings import NotifySettings
from aboard.diagnoses import AboardError, Finding
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import messages
from aboard.engine.check.check_cluster import CheckReport
from aboard.foreign_files import open_foreign_file

SENDER = (sys.executable, "-P", "-m", "aboard.engine.monitoring.message_sender")
_PROBE_SECONDS = 15.0
_LONGEST = 4096
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_address(settings: NotifySettings, environ: Mapping[str, str]) -> str:
    """The address; raises AboardError, which never contains any of it."""
    if settings.env:
        place, text = f"the variable {settings.env}", environ.get(settings.env, "")
        if not text:
            raise AboardError(
                messages.NOTIFY_ADDRESS, f"{place} is not set on {_name_host()}", "env", name=settings.env
            )
    else:
        place, text = escape_text(settings.file, 300), _read_private(settings.file)
    address = text.strip()
    try:
        url = urlsplit(address)
        is_address = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:
        is_address = False
    if not is_address or not address.isprintable() or " " in address:
        raise AboardError(messages.NOTIFY_ADDRESS, f"{place} does not have the address of a web hook", "url")
    return address


def _read_private(path: str) -> str:
    try:
        with open_foreign_file(path) as file:
            status = os.fstat(file.fileno())
            if status.st_mode & _OTHERS or status.st_uid != os.geteuid():
                whose = "others can read it" if status.st_uid == os.geteuid() else f"it belongs to uid {status.st_uid}"
                raise AboardError(messages.NOTIFY_ADDRESS, f"{escape_text(path, 300)}: {whose}", "mode", path=path)
            return file.read(_LONGEST).decode("utf-8", "replace")
    except OSError as error:
        seen = f"{escape_text(path, 300)} on {_name_host()}: {error.strerror}"
        raise AboardError(messages.NOTIFY_ADDRESS, seen, "file", path=path) from None


def build_task(settings: NotifySettings, receiver: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """What the process of this receiver needs to know; raises AboardError if the address can't be used."""
    if receiver == "command":
        return {"receiver": receiver, "command": list(settings.command)}
    return {"receiver": receiver, "address": read_address(settings, environ), "format": settings.format}


def build_problem(settings: NotifySettings, receiver: str, why: str) -> Finding:
    """Messages don't reach this receiver."""
    source = "command" if receiver == "command" else "env" if settings.env else "file"
    fix = messages.NOTIFY_UNSENT.fix(source, name=settings.env, path=settings.file, command=settings.command)
    return messages.NOTIFY_UNSENT.finding(
        nodes=(_name_host(),), seen=f"notify.{receiver} from {_name_host()}: {escape_text(why, 400)}", fix=fix
    )


async def check_with_receivers(
    checking: Coroutine[None, None, CheckReport], cluster: Cluster | None, environ: Mapping[str, str]
) -> tuple[CheckReport, list[Finding]]:
    """The check, and whether messages and metrics of a run on the cluster would arrive from this machine."""
    if cluster is None:
        return await checking, []
    report, problems = await asyncio.gather(checking, find_notify_problems(cluster.notify, environ))
    return report, [*problems, *find_textfile_problems(cluster.textfile)]


async def find_notify_problems(settings: NotifySettings, environ: Mapping[str, str]) -> list[Finding]:
    """Why messages from this machine would not arrive; sends none."""
    probes = (_probe(settings, receiver, environ) for receiver in settings.receivers)
    return [problem for problem in await asyncio.gather(*probes) if problem is not None]


async def _probe(settings: NotifySettings, receiver: str, environ: Mapping[str, str]) -> Finding | None:
    try:
        task = build_task(settings, receiver, environ)
    except AboardError as error:
        return error.diagnosis.finding(nodes=(_name_host(),), seen=error.seen, fix=error.fix)
    # In a process of its own: a name server that does not answer can't be interrupted.
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*SENDER, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL)
    try:
        said, _ = await asyncio.wait_for(process.communicate(json.dumps(task).encode() + b"\n"), _PROBE_SECONDS)
    except TimeoutError:
        return build_problem(settings, receiver, f"no answer within {_PROBE_SECONDS:.0f} s")
    finally:
        # Also when we are cancelled.
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return build_problem(settings, receiver, parse_json(said)["why"]) if said else None


def find_textfile_problems(folder: str) -> list[Finding]:
    """Why metrics could not be written to this directory."""
    if not folder or os.access(folder, os.W_OK | os.X_OK):
        return []
    seen = f"metrics.textfile: can't write in {escape_text(folder, 300)} on {_name_host()}"
    return [
        messages.METRICS_UNWRITTEN.finding(
            nodes=(_name_host(),), seen=seen, fix=messages.METRICS_UNWRITTEN.fix(folder=folder)
        )
    ]


def _name_host() -> str:
    return escape_text(os.uname().nodename, 100)
