"""`aboard trust`."""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import click
from rich.console import Console
from rich.status import Status

from aboard.commands.shared.options.node_arguments import node_arguments
from aboard.commands.shared.printed_output import build_console, print_report
from aboard.commands.trust.host_keys import FingerprintFile
from aboard.commands.trust.node_access import Access
from aboard.commands.trust.trust_cluster import trust_cluster
from aboard.commands.trust.trust_view import HostKeyTable, describe_trust, format_trust_json
from aboard.commands.trust.undo_trust import undo_trust
from aboard.config.input_files import read_text
from aboard.core.exit_codes import choose_exit_code
from aboard.core.text.shell_quoting import quote_typed_words
from aboard.core.trust.expected_fingerprints import parse_fingerprints
from aboard.core.trust.trust_report import NewHostKey, TrustReport, UndoReport
from aboard.diagnoses import InputError, Severity
from aboard.diagnoses.nodes import trust as diagnoses
from aboard.engine.request.node_arguments import NodeArguments
from aboard.record.trust_record import TrustRecords
from aboard.transport.open_file_limit import raise_open_file_limit

_READABLE_BY_OTHERS = 0o077


@click.command()
@node_arguments
@click.option("--identity", type=Path, metavar="FILE", help="A private key that logs in already, such as a cloud's.")
@click.option(
    "--fingerprints", metavar="FILE", help="Compare host keys with this file instead of asking: `NODE SHA256:…` lines."
)
@click.option("--mesh", is_flag=True, help="Let every node log in to every node, for pdsh, MPI and deepspeed.")
@click.option("--undo", is_flag=True, help="Take back every change, on NODES or on all nodes.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def trust(
    where: NodeArguments, identity: Path | None, fingerprints: str | None, mesh: bool, undo: bool, as_json: bool
) -> None:
    """Let this machine log in to all nodes: pin their host keys, then install your ssh key.

    NODES are names, node sets (n1 gpu[01-16]) or aboard.yaml files. The default is ./aboard.yaml.

    Aboard shows host keys that it has not seen, and asks once whether they are right; with --fingerprints it compares
    them with a file. It never accepts or replaces a host key by itself. It uses the key that ssh would use, or creates
    ~/.ssh/id_ed25519 without a passphrase. To install it, it logs in with --identity, your ssh agent, a jump host of
    your ssh_config, or a password, for which ssh asks once per node.

    With --mesh, each node gets a key of its own; private keys are never copied. --undo restores every file as it was,
    or removes exactly Aboard's lines from files that were edited since.

    Exit code: 0 all nodes are ready; 2 some are not, with a finding for each; 3 the command is wrong.
    """
    records = TrustRecords.of(os.environ)
    console = build_console()
    terminal = sys.stdin.isatty()
    _refuse_bad_identity(identity)
    access = Access(identity=identity, terminal=terminal, typed=quote_typed_words(["aboard", *sys.argv[1:]]))
    report: TrustReport | UndoReport
    with TrustProgress(build_console(stderr=True)) as progress:
        if undo:
            _refuse_with_undo(mesh=mesh, fingerprints=fingerprints)
            nodes = where.cluster().nodes if where.is_given else None
            report = asyncio.run(undo_trust(nodes, records, access, progress))
        else:
            file = _read_fingerprints(fingerprints)
            cluster = where.cluster()
            raise_open_file_limit(len(cluster))
            report = asyncio.run(trust_cluster(cluster, records, access, progress, file=file, mesh=mesh))
    if as_json:
        click.echo(format_trust_json(report))
    else:
        trust_report = describe_trust(report)
        print_report(console, trust_report, trust_report.format_lines())
    sys.exit(choose_exit_code(report.findings, blocking=Severity.WARN))


class TrustProgress:
    """Shows the current phase on a terminal, and asks the user there."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def begin_phase(self, phase: str) -> None:
        if not self._console.is_terminal:
            return
        if self._status is None:
            self._status = self._stack.enter_context(self._console.status(phase))
        self._status.update(phase)

    def confirm_host_keys(self, keys: Sequence[NewHostKey]) -> bool:
        self._pause()
        self._console.print(HostKeyTable(keys), crop=False)
        return click.confirm("Do all of them match?", default=False, err=True)

    def announce_password(self, node: str, number: int, total: int) -> None:
        # Nothing else may write to the terminal while ssh asks there.
        self._pause()
        again = " Later logins use the key." if number == 1 else ""
        self._console.print(f"{number} of {total}: ssh asks for your password on {node}, once.{again}")

    def _pause(self) -> None:
        self._stack.close()
        self._status = None


def _read_fingerprints(path: str | None) -> FingerprintFile | None:
    if path is None:
        return None
    text = read_text(path, fix=diagnoses.FINGERPRINTS.fix())
    return FingerprintFile(path=Path(path), expected=parse_fingerprints(text, where=path))


def _refuse_bad_identity(path: Path | None) -> None:
    if path is None:
        return
    if not path.is_file():
        raise InputError.of(diagnoses.IDENTITY, str(path), "there is no such file", "missing", file=path)
    if path.stat().st_mode & _READABLE_BY_OTHERS:
        raise InputError.of(diagnoses.IDENTITY, str(path), "others can read the key", "mode", file=path)


def _refuse_with_undo(*, mesh: bool, fingerprints: str | None) -> None:
    for option, is_set in (("--mesh", mesh), ("--fingerprints", fingerprints is not None)):
        if is_set:
            seen = f"{option} cannot be combined with --undo"
            raise InputError.of(diagnoses.OPTIONS, "aboard trust", seen)
