"""Faults that `aboard check` must name: where each is put, and the code and nodes that must stand first."""

from dataclasses import dataclass

from aboard.sandbox.faults import Fault
from aboard.sandbox.faults.clock import ClockOffset
from aboard.sandbox.faults.disk import DiskFull, PathMissing
from aboard.sandbox.faults.firewall import Drop, Reject
from aboard.sandbox.faults.limits import LowLimits, SmallShm
from aboard.sandbox.faults.link import LinkDown, Loss, MtuBlackHole, Rate
from aboard.sandbox.faults.names import OwnNameOnLoopback, Unresolved
from aboard.sandbox.faults.process import PortTaken, PowerLoss
from aboard.sandbox.faults.python import NoPython, OldPython
from aboard.sandbox.faults.shell import NoisyShell
from aboard.sandbox.faults.sshd import KeyRemoved, OtherHostKey, SshdSlow, SshdStopped

ALL = "1024-65535"
NOT_RENDEZVOUS = "1024-29499,29501-65535"
WORKDIR = "/private/job"


@dataclass(frozen=True, kw_only=True)
class Case:
    """`row` is the kind of failure in our catalogue; `code` must be named on `nodes` and on no other."""

    row: int
    where: str
    fault: Fault
    code: str
    nodes: tuple[str, ...]
    full: bool = False
    workdir: str = WORKDIR
    # What it may be called as well: a dead host is a time-out or no route, as the kernel's neighbour table has it.
    or_code: str = ""


CASES = (
    Case(row=1, where="n2", fault=KeyRemoved(), code="reach-key-refused", nodes=("n2",)),
    Case(row=2, where="n2", fault=OtherHostKey(), code="reach-host-key-changed", nodes=("n2",)),
    Case(row=3, where="n2", fault=SshdStopped(), code="reach-refused", nodes=("n2",)),
    Case(row=4, where="n2", fault=Drop(network="management"), code="reach-timeout", nodes=("n2",)),
    Case(row=4, where="n2", fault=Reject(answer="host-prohibited"), code="reach-no-route", nodes=("n2",)),
    Case(row=4, where="n4", fault=PowerLoss(), code="reach-timeout", nodes=("n4",), or_code="reach-no-route"),
    Case(row=5, where="head", fault=Unresolved(peer="n2"), code="reach-unresolved", nodes=("n2",)),
    Case(row=5, where="n2", fault=Unresolved(peer="n3"), code="network-unresolved", nodes=("n2",)),
    Case(row=6, where="n2", fault=SshdSlow(seconds=5), code="reach-slow-login", nodes=("n2",)),
    Case(row=8, where="n3", fault=NoPython(), code="reach-no-python", nodes=("n3",)),
    Case(row=8, where="n3", fault=OldPython(), code="reach-old-python", nodes=("n3",)),
    Case(row=8, where="n3", fault=NoisyShell(), code="reach-noisy-shell", nodes=("n3",)),
    Case(row=10, where="n2", fault=OwnNameOnLoopback(), code="host-own-name", nodes=("n2",)),
    Case(row=12, where="n2", fault=ClockOffset(seconds=30), code="host-clock", nodes=("n2",)),
    Case(row=14, where="n3", fault=LowLimits(nofile=1000), code="host-open-files", nodes=("n3",)),
    Case(row=14, where="n3", fault=LowLimits(nproc=800), code="host-processes", nodes=("n3",)),
    Case(row=15, where="n2", fault=SmallShm(mib=64), code="host-shm", nodes=("n2",)),
    Case(row=21, where="n3", fault=Drop(ports="29500"), code="network-rendezvous-dropped", nodes=("n3",)),
    Case(row=21, where="n3", fault=Drop(ports=ALL), code="network-dropped", nodes=("n3",)),
    Case(row=21, where="n3", fault=Drop(ports=ALL, way="out"), code="network-dropped", nodes=("n3",)),
    Case(row=21, where="n2", fault=Drop(ports=ALL, peer="n1"), code="network-dropped", nodes=("n1", "n2")),
    Case(row=22, where="n3", fault=Reject(ports=ALL), code="network-refused", nodes=("n3",)),
    Case(row=22, where="n3", fault=Reject(ports="29500"), code="network-rendezvous-refused", nodes=("n3",)),
    Case(
        row=22,
        where="n3",
        fault=Reject(ports=ALL, answer="host-prohibited"),
        code="network-rejected",
        nodes=("n3",),
    ),
    Case(row=24, where="n1", fault=PortTaken(), code="network-port-taken", nodes=("n1",)),
    Case(row=25, where="n3", fault=Drop(ports=NOT_RENDEZVOUS), code="network-ephemeral-dropped", nodes=("n3",)),
    Case(row=26, where="n3", fault=MtuBlackHole(network="fabric"), code="network-mtu", nodes=("n3",)),
    Case(row=27, where="n3", fault=Rate(mbit=50, network="fabric"), code="network-slow", nodes=("n3",), full=True),
    Case(row=27, where="n3", fault=Loss(percent=5, network="fabric"), code="network-loss", nodes=("n3",), full=True),
    Case(row=29, where="n3", fault=LinkDown(network="fabric"), code="network-link-down", nodes=("n3",)),
    Case(row=59, where="n2", fault=PathMissing(path=WORKDIR), code="storage-missing", nodes=("n2",)),
    Case(
        row=59,
        where="n2",
        fault=PathMissing(path="/shared"),
        code="storage-not-shared",
        nodes=("n2",),
        full=True,
        workdir="/shared",
    ),
    Case(row=60, where="n2", fault=DiskFull(path=WORKDIR), code="storage-full", nodes=("n2",)),
)
