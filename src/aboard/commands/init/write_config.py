"""`aboard init`: contacts the nodes, and writes aboard.yaml with what was found."""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from aboard.config.allowed_files import compute_digest, is_allowed, list_settings_to_allow, record_allowed
from aboard.config.known_nodes import FoundNodes
from aboard.config.node_entries import build_nodes, read_section_entries
from aboard.config.starter_file import format_starter_file
from aboard.config.this_machine import find_environment
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.discovery import DiscoveredCluster
from aboard.core.cluster.head_machine import HeadMachine
from aboard.core.probes.rank_environment import RankSpec
from aboard.diagnoses import NO_FIX, InputError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import commands
from aboard.doctor.discovery import build_nonce_probe, build_subjects, summarize_facts
from aboard.durable_files import write_atomically
from aboard.engine.check.check_cluster import check_cluster
from aboard.engine.check.check_observer import CheckObserver
from aboard.foreign_files import ForeignFileError, find_link_target
from aboard.transport.node_dialer import TransportFor, choose_transport

# As `aboard check` names its own, which removes those that a crash left.
_NONCE = ".aboard-nonce-"

OutputAction = Literal["create", "add", "keep"]


async def discover_cluster(
    nodes: FoundNodes,
    *,
    here: HeadMachine,
    environ: Mapping[str, str],
    check_observer: CheckObserver | None = None,
    transport_for: TransportFor = choose_transport,
) -> DiscoveredCluster:
    """Contacts all nodes in parallel; a node that can't be reached is part of the result."""
    cluster = Cluster(nodes=build_nodes(nodes.entries, None, here), source=escape_text(nodes.source, 200))
    workdir = Path.cwd()
    with _write_nonce(workdir) as (path, nonce):
        probe = build_nonce_probe(path, nonce)
        report = await check_cluster(
            cluster,
            build_subjects(probe),
            spec=RankSpec(environment=find_environment(environ)),
            transport_for=transport_for,
            check_observer=check_observer,
        )
    found = summarize_facts(report.facts, probe, workdir=escape_text(str(workdir), 200))
    return replace(found, at_home=Path.home().resolve() == workdir.resolve())


def write_starter_file(output: str, nodes: FoundNodes, cluster: DiscoveredCluster, action: OutputAction) -> None:
    """Creates the file, or adds the nodes to one without a `cluster` section; what the user typed there is allowed."""
    text = format_starter_file(nodes.entries, cluster)
    needs_consent = action == "keep" or (action == "add" and not _is_allowed(output))
    try:
        if action == "add":
            with Path(output).open("r+", encoding="utf-8") as file:
                before = file.read()
                gap = "\n" if before.endswith("\n") or not before else "\n\n"
                file.write(gap + text)
        elif action == "create":
            with Path(output).open("x", encoding="utf-8") as file:
                file.write(text)
    except FileExistsError:
        raise _build_exists_error(output) from None
    except OSError as error:
        seen = f"cannot write the file: {error.strerror}"
        raise InputError.of(commands.INIT_WRITE, output, seen) from None
    settings = [] if needs_consent else list_settings_to_allow(output, fix=NO_FIX)
    if settings:
        record_allowed(output, compute_digest(settings), os.environ)


def _is_allowed(file: str) -> bool:
    settings = list_settings_to_allow(file, fix=NO_FIX)
    return not settings or is_allowed(file, compute_digest(settings), os.environ)


def choose_output_action(output: str, nodes: FoundNodes) -> OutputAction:
    """Raises, before any node is contacted, if the file lists other nodes or can't be read."""
    if not os.path.lexists(output):
        return "create"
    # Late: pydantic takes 100 ms, and a new file does not need it.
    from aboard.config.config_loader import load_config_files  # noqa: PLC0415 - the reason is above

    try:
        find_link_target(output)  # else a link in a clone would add the nodes to another file of the user
        config = load_config_files([output])
        if config.document.cluster is None:
            return "add"
        if [entry.name for entry in read_section_entries(config)] == [entry.name for entry in nodes.entries]:
            return "keep"
    except (InputError, ForeignFileError):
        pass
    raise _build_exists_error(output)


def _build_exists_error(output: str) -> InputError:
    return InputError.of(commands.INIT_EXISTS, output, "the file already exists", other=f"{Path(output).stem}-2.yaml")


@contextmanager
def _write_nonce(directory: Path) -> Iterator[tuple[str, str]]:
    """A file that nodes see only if they share the directory; without one, none of them does."""
    nonce, path = secrets.token_hex(16), directory / f"{_NONCE}{secrets.token_hex(4)}"
    try:
        with suppress(OSError):
            write_atomically(path, nonce, sync=True)
            # Nodes may log in as another user.
            path.chmod(0o644)
        yield str(path), nonce
    finally:
        with suppress(OSError):
            path.unlink()
