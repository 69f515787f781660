"""The whole argv of each ssh that Aboard starts: no use may lack what every login needs."""

import asyncio
import os
from pathlib import Path

import pytest

from aboard.commands.shared.options.command_after_dashes import launch_on_host
from aboard.commands.trust.mesh import TRY_LOGIN
from aboard.core.cluster.contact import UnreachedNode
from aboard.core.cluster.node import Node
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.engine.check.inspect_slurm import ask_munge
from aboard.transport.shell.ssh_login import build_login_command, build_scan_command
from aboard.transport.ssh import build_ssh_command

NODE = Node(name="n1", address="10.0.0.1", user="me", port=2222)
TARGET = "-p 2222 -l me -- 10.0.0.1"
NO_DELEGATION = (
    "-o ForwardAgent=no -o ForwardX11=no -o ForwardX11Trusted=no -o Tunnel=no -o PermitLocalCommand=no"
    " -o ClearAllForwardings=yes"
)
STREAM = "-o ControlMaster=no -o RemoteCommand=none -o RequestTTY=no -o EscapeChar=none"
LOGIN = f"{STREAM} -o ControlPath=none -o UpdateHostKeys=no"


def test_an_agent_is_started_with_checked_host_keys() -> None:
    """It asks nothing, delegates nothing, and makes no master connection."""
    options = f"-o BatchMode=yes -o StrictHostKeyChecking=yes {NO_DELEGATION} -o ConnectTimeout=10 {STREAM}"
    *argv, remote = build_ssh_command(NODE, ("-F", "config"))
    assert " ".join(argv) == f"ssh -F config -T -v {options} {TARGET}"
    assert remote.startswith("exec python3 -ISc ")


def test_a_scan_logs_in_nowhere_and_stores_nothing() -> None:
    """The only file that gets a key is the one that is given."""
    argv = build_scan_command(NODE, Path("/tmp/x y/known_hosts"), types=("ssh-rsa", "ssh-ed25519"), extra=("-F", "c"))
    assert " ".join(argv) == (
        f"ssh -F c -T -v -o BatchMode=yes -o StrictHostKeyChecking=accept-new {NO_DELEGATION} -o ConnectTimeout=10"
        f" {LOGIN} -o GlobalKnownHostsFile=/dev/null -o HashKnownHosts=no -o CheckHostIP=no -o VerifyHostKeyDNS=no"
        " -o PreferredAuthentications=none -o PubkeyAuthentication=no"
        ' -o UserKnownHostsFile="/tmp/x y/known_hosts" -o HostKeyAlgorithms=rsa-sha2-512,rsa-sha2-256,ssh-ed25519'
        f" {TARGET} true"
    )
    assert "HostKeyAlgorithms" not in " ".join(build_scan_command(NODE, Path("known_hosts")))


def test_a_login_of_trust_checks_the_host_key_also_where_it_asks() -> None:
    """Only a password is asked for, never whether to accept a key."""
    strict = f"-o StrictHostKeyChecking=yes {NO_DELEGATION} -o ConnectTimeout=10 {LOGIN}"
    assert " ".join(build_login_command(NODE)) == f"ssh -T -v -o BatchMode=yes {strict} {TARGET} exec sh"
    argv = build_login_command(NODE, identity=Path("/k"), extra=("-F", "c"), ask=True)
    assert " ".join(argv) == (
        f"ssh -F c -i /k -T -v -o BatchMode=no {strict} -o IdentitiesOnly=yes"
        f" -o PreferredAuthentications=publickey,keyboard-interactive,password {TARGET} exec sh"
    )


def test_nodes_try_each_other_with_checked_host_keys() -> None:
    """They have no option that OpenSSH 7.4 does not know."""
    assert TRY_LOGIN.splitlines()[1:3] == [
        (
            f"    if said=$(ssh -o BatchMode=yes -o StrictHostKeyChecking=yes {NO_DELEGATION} -o ConnectTimeout=10"
            " -o UpdateHostKeys=no -o ControlPath=none \\"
        ),
        '        -p "$2" -l "$3" -- "$4" true 2>&1 </dev/null)',
    ]


@pytest.fixture
def ssh_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file to which an ssh and a munge on PATH write their arguments."""
    log = tmp_path / "log"
    for name in ("ssh", "munge"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {log}\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return log


def test_a_launch_on_another_host_delegates_nothing(ssh_log: Path) -> None:
    """ssh_config decides about host keys, as for an ssh that is typed; the command goes over stdin."""
    assert launch_on_host("login", ["launch", "--on", "login", "--", "train.py"]) == 0
    assert ssh_log.read_text() == f"ssh -T -o BatchMode=yes {NO_DELEGATION} -- login exec sh\n"


def test_munge_on_a_node_gets_no_agent(ssh_log: Path) -> None:
    """ssh_config decides about host keys; a node that doesn't answer is given up after seconds."""
    silent = UnreachedNode(reason=UnreachableReason.SLURMD_REFUSED, said="")
    asyncio.run(ask_munge({"n1": silent}, os.environ))
    assert ssh_log.read_text().splitlines() == [
        "munge -n",
        f"ssh -T -o BatchMode=yes {NO_DELEGATION} -o ConnectTimeout=5 -- n1 unmunge",
    ]
