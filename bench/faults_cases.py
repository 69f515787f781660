"""Faults that stop a run or slow it down, by phase, and the codes that their verdict must have."""

import random
import signal
from dataclasses import dataclass, field
from hashlib import sha256

from aboard.sandbox.faults import Fault
from aboard.sandbox.faults.host.clock import ClockOffset
from aboard.sandbox.faults.host.control_groups import CpuQuota, MemoryLimit
from aboard.sandbox.faults.host.disk import DiskFull, PathMissing
from aboard.sandbox.faults.host.processes import PowerLoss
from aboard.sandbox.faults.host.resource_limits import LowLimits, SmallShm
from aboard.sandbox.faults.host.ssh_server import KeyRemoved, OtherHostKey, SshdSlow, SshdStopped
from aboard.sandbox.faults.network.firewall import FirewallDrop, FirewallReject
from aboard.sandbox.faults.network.links import LinkDown, LinkRateLimit, MtuBlackHole, PacketLoss
from aboard.sandbox.faults.network.name_resolution import UnresolvedName
from faults_stage import get_node
from faults_troubles import SERVICE, Broken, Signalled, Trouble, Typed, dead_mount

SEED = 7
# Why no command can fix it.
SCRIPT = "the fix is in the user's own script"
KEY = "aboard trust asks for a password"
BUTTON = "somebody must power the node on"
CABLE = "another cable or switch port"
CLOCK = "sandbox hosts share one kernel's clock: setting it sets that of the machine"
ROOM = "a person must decide what to delete"
MEMORY = "the user must decide how much memory a rank takes"
OTHERS = "the service belongs to somebody else"
# Ports of the rendezvous store, and the ephemeral ports on which ranks listen for each other.
STORE, ANY = "29400-29999", "32768-60999"


@dataclass(frozen=True, kw_only=True)
class Case:
    """`codes` are the correct ones; `row` is the kind of failure in our catalogue.

    `when` is the phase of the training when it breaks: before (the launch's preflight must name it), import, init, run,
    checkpoint, evaluation, end. `own` is a fault of the rank itself, `trouble` one from outside, `beneath` one that the
    node had before the launch and that takes effect only then.
    """

    name: str
    row: int
    when: str
    codes: tuple[str, ...]
    own: str = ""
    who: str = ""
    trouble: Trouble | None = None
    beneath: Trouble | None = None
    #: A fixed victim if the fault allows only one; otherwise drawn by the name.
    victim: int | None = None
    #: Whether the rank itself must be named, or only its node.
    rank: bool = True
    #: Whether any node is correct, because all have the fault.
    anywhere: bool = False
    #: Whether the training survives it.
    lasts: bool = False
    env: tuple[tuple[str, str], ...] = ()
    #: The mark to wait for before injecting: of the victim, or of all ranks.
    trigger: str = ""
    all_there: bool = False
    #: What counts as the first effect: the injection, a rank's mark of this name, or (join) ranks waiting for others.
    effect: str = "inject"
    words: tuple[str, ...] = field(default=())
    #: Why no command can fix it, so that the bench heals it; empty if the printed fix must fix it.
    by_hand: str = ""
    #: Written after the rules by somebody who had not read them; scored once. 1 or 2: which set.
    blind: int = 0

    @property
    def victim_rank(self) -> int:
        drawn = random.Random(f"{SEED} {self.name}").randrange(1, 8)  # noqa: S311 - drawn for a bench, no secret
        return drawn if self.victim is None else self.victim

    @property
    def node(self) -> str:
        return get_node(self.victim_rank)

    @property
    def held_out(self) -> bool:
        return not self.blind and sha256(self.name.encode()).digest()[0] % 3 == 0


def _build_before(name: str, row: int, fault: Fault | Trouble, *codes: str, **more: object) -> Case:
    trouble = Broken(fault=fault) if isinstance(fault, Fault) else fault
    return Case(name=f"{name}, before", row=row, when="before", codes=codes, trouble=trouble, rank=False, **more)  # type: ignore[arg-type]


def own(name: str, row: int, when: str, own: str, *codes: str, **more: object) -> Case:
    waits = when in ("import", "init") and not codes[0].startswith("run-")
    given = {"effect": "join" if waits else "effect", "by_hand": SCRIPT, **more}
    return Case(name=f"{name}, {when}", row=row, when=when, codes=codes, own=own, **given)  # type: ignore[arg-type]


def outside(name: str, row: int, when: str, fault: Fault | Trouble, *codes: str, **more: object) -> Case:
    trouble = Broken(fault=fault) if isinstance(fault, Fault) else fault
    trigger, all_there = _TRIGGERS[when]
    effect = "join" if when == "init" else "inject"
    given = {"rank": False, "effect": effect, "trigger": trigger, "all_there": all_there, **more}
    return Case(name=f"{name}, {when}", row=row, when=when, codes=codes, trouble=trouble, **given)  # type: ignore[arg-type]


# A fault of init starts after the preflight check and before the first rank contacts another.
_TRIGGERS = {
    "import": ("started", False),
    "init": ("started", True),
    "run": ("warm", True),
    "checkpoint": ("checkpoint", False),
    "evaluation": ("evaluation", False),
}
KILL, STOP, TERM = Signalled(number=signal.SIGKILL), Signalled(number=signal.SIGSTOP), Signalled(number=signal.SIGTERM)
# Injected during the run, it takes effect when the next checkpoint is written.
_AT_NEXT: dict[str, object] = {"trigger": "warm", "all_there": True, "effect": "checkpoint"}
# Lowers the quota of the sessions' control group, which was high at first.
RATION = Typed(lines="echo 10000 > $(find /sys/fs/cgroup/cpu -type d -name aboard-$BOX-$(hostname))/cpu.cfs_quota_us")
UNHEARD = ("run-node-silent", "run-node-gone")
NO_WAY = ("network-dropped", "network-ephemeral-dropped", "network-rendezvous-dropped")

BEFORE = (
    _build_before("key removed", 1, KeyRemoved(), "reach-key-refused", by_hand=KEY),
    _build_before("another host key", 2, OtherHostKey(), "reach-host-key-changed"),
    _build_before("sshd stopped", 3, SshdStopped(), "reach-refused"),
    _build_before("management network dropped", 4, FirewallDrop(network="management"), "reach-timeout"),
    _build_before("power lost", 4, PowerLoss(), "reach-timeout", "reach-no-route", by_hand=BUTTON),
    _build_before("peer's name unknown", 5, UnresolvedName(peer="next"), "network-unresolved", "reach-unresolved"),
    _build_before("slow login", 6, SshdSlow(seconds=6), "reach-slow-login"),
    _build_before("clock ahead", 12, ClockOffset(seconds=30), "host-clock", by_hand=CLOCK),
    _build_before("few open files", 14, LowLimits(nofile=256), "host-open-files"),
    _build_before("small shared memory", 15, SmallShm(mib=16), "host-shm"),
    _build_before("all ports dropped", 21, FirewallDrop(ports="1024-65535", network="fabric"), *NO_WAY),
    _build_before("all ports refused", 22, FirewallReject(ports="1024-65535", network="fabric"), "network-refused"),
    _build_before("only the store's port open", 25, FirewallDrop(ports="32768-60999", network="fabric"), *NO_WAY),
    _build_before("large packets vanish", 26, MtuBlackHole(network="fabric"), "network-mtu"),
    _build_before("cable pulled", 29, LinkDown(network="fabric"), "network-link-down", by_hand=CABLE),
    _build_before(
        "working directory missing",
        59,
        PathMissing(path="/private/job"),
        "storage-missing",
        words=("--set", "cluster.workdir=/private/job"),
    ),
    _build_before(
        "disk full",
        60,
        DiskFull(path="/private/out"),
        "storage-full",
        words=("--set", "cluster.workdir=/private/out"),
        by_hand=ROOM,
    ),
    _build_before(
        "mount dead",
        61,
        dead_mount("/private/out"),
        "storage-dead-mount",
        words=("--set", "cluster.workdir=/private/out"),
    ),
)
START = (
    own("module missing", 8, "import", "module", "run-raised", by_hand=""),
    own("import waits for ever", 61, "import", "import", "init-rank-late", "init-import-slow", "hang-mount"),
    own("exits at once", 63, "import", "exit", "run-exited"),
    outside("rank killed", 65, "import", KILL, "run-killed", rank=True),
    outside("rank stopped", 66, "import", STOP, "run-rank-stopped", rank=True),
    outside("power lost", 4, "import", PowerLoss(), *UNHEARD, by_hand=BUTTON),
)
INIT = (
    own(
        "file missing",
        59,
        "init",
        "file",
        "run-raised",
        by_hand="",
        beneath=Typed(
            lines="mv /private/data/tokenizer.json /private/data/t",
            undo="mv /private/data/t /private/data/tokenizer.json",
        ),
    ),
    outside(
        "store dropped at rank 0",
        21,
        "init",
        FirewallDrop(ports=STORE, network="fabric"),
        "init-store-dropped",
        victim=0,
    ),
    outside(
        "store dropped on the way out",
        21,
        "init",
        FirewallDrop(ports=STORE, network="fabric", way="out"),
        "init-store-dropped",
        victim=5,
    ),
    outside(
        "store refused at rank 0",
        22,
        "init",
        FirewallReject(ports=STORE, network="fabric"),
        "init-store-refused",
        "init-store-rejected",
        victim=0,
    ),
    outside(
        "store prohibited at rank 0",
        22,
        "init",
        FirewallReject(ports=STORE, network="fabric", answer="host-prohibited"),
        "init-store-rejected",
        "init-store-no-route",
        victim=0,
    ),
    outside("peers dropped", 25, "init", FirewallDrop(ports=ANY, network="fabric"), "network-ephemeral-dropped"),
    outside(
        "peers refused",
        25,
        "init",
        FirewallReject(ports=ANY, network="fabric"),
        "network-ephemeral-refused",
        "network-ephemeral-dropped",
        victim=2,
    ),
    outside(
        "one pair dropped",
        25,
        "init",
        FirewallDrop(ports=ANY, network="fabric", peer="next"),
        "network-ephemeral-dropped",
    ),
    own("another port", 58, "init", "port", "init-elsewhere"),
    own("unknown name of rank 0", 23, "init", "name", "init-name", by_hand=""),
    own("another node's address", 22, "init", "address", "init-elsewhere"),
    own(
        "an address that nobody has",
        4,
        "init",
        "no-such-address",
        "init-elsewhere",
        "init-store-dropped",
        "init-store-no-route",
    ),
    own("larger world on all", 57, "init", "world", "init-world", who="all", anywhere=True, rank=False),
    own("larger world on one", 57, "init", "world", "init-world"),
    own("the same rank twice", 57, "init", "same-rank", "init-world", "init-same-rank", "init-rank-twice"),
    own("interface that isn't there", 11, "init", "interface", "run-raised", "init-interface"),
    own("rank 0 never listens", 22, "init", "sleep", "init-rank-late", victim=0),
    own("a rank comes late", 56, "init", "deadlock", "init-rank-late"),
    own("store's port taken", 24, "init", "port-taken", "run-raised", victim=0),
    outside("rank killed", 65, "init", KILL, "run-killed", rank=True, trigger="join", all_there=False, effect="inject"),
    outside(
        "rank stopped",
        66,
        "init",
        STOP,
        "run-rank-stopped",
        rank=True,
        trigger="join",
        all_there=False,
        effect="inject",
    ),
    outside(
        "cable pulled",
        29,
        "init",
        LinkDown(network="fabric"),
        "network-ephemeral-dropped",
        "init-store-dropped",
        "init-store-no-route",
        "hang-link-down",
        "hang-link-cut",
        by_hand=CABLE,
    ),
)
GOING = (
    own("data doesn't come", 63, "run", "data", "hang-data", lasts=True),
    own("deadlock", 67, "run", "deadlock", "hang-lock", lasts=True),
    own("endless loop", 67, "run", "loop", "hang-loop", lasts=True),
    own("service doesn't answer", 67, "run", "service", "hang-outside", lasts=True, beneath=SERVICE, by_hand=OTHERS),
    own("sleeps", 69, "run", "sleep", "hang-absent", lasts=True),
    own("slow rank", 69, "run", "slower", "slow-rank", lasts=True),
    own("loss is no number", 70, "run", "nan", "loss-no-number", lasts=True, victim=0, by_hand=""),
    outside("network dropped", 21, "run", FirewallDrop(network="fabric"), "hang-link-cut", lasts=True),
    outside(
        "network dropped to one peer",
        21,
        "run",
        FirewallDrop(network="fabric", peer="next", way="both"),
        "hang-link-cut",
        lasts=True,
    ),
    outside("large packets vanish", 26, "run", MtuBlackHole(network="fabric"), "hang-big-packets", lasts=True),
    outside("cable pulled", 29, "run", LinkDown(network="fabric"), "hang-link-down", lasts=True, by_hand=CABLE),
    outside("slow link", 27, "run", LinkRateLimit(mbit=8, network="fabric"), "slow-link", lasts=True, by_hand=CABLE),
    outside(
        "packets lost",
        27,
        "run",
        PacketLoss(percent=30, network="fabric"),
        "slow-link",
        "hang-link-cut",
        lasts=True,
        by_hand=CABLE,
    ),
    outside("management network dropped", 4, "run", FirewallDrop(network="management"), *UNHEARD, lasts=True),
)
ENDING = (
    own("raises", 63, "run", "raise", "run-raised"),
    own("exits", 63, "run", "exit", "run-exited"),
    own("segmentation fault", 63, "run", "segfault", "run-killed"),
    own("abort", 63, "run", "abort", "run-killed"),
    own("shared memory full", 15, "run", "share", "run-shm-full", by_hand="", beneath=Broken(fault=SmallShm(mib=64))),
    own(
        "out of memory",
        16,
        "run",
        "memory",
        "run-out-of-memory",
        by_hand=MEMORY,
        beneath=Broken(fault=MemoryLimit(mib=1200)),
    ),
    own("bad shard", 63, "run", "bad-shard", "run-raised"),
    own("too many open files", 14, "run", "open-files", "run-raised", "run-exited"),
    own("holds the interpreter", 67, "run", "match", "hang-loop", "hang-busy"),
    own("another size", 19, "run", "other-size", "hang-mismatch", "run-mismatch", "run-killed", "run-raised"),
    own("another call", 68, "run", "other-call", "hang-mismatch", "run-mismatch"),
    own("groups in another order", 68, "run", "groups", "hang-order", who="all"),
    own("fewer batches", 64, "run", "fewer", "hang-uneven", effect="end"),
    outside("rank killed", 65, "run", KILL, "run-killed", rank=True),
    outside("rank ended by hand", 65, "run", TERM, "run-killed", rank=True),
    outside("both ranks killed", 65, "run", Signalled(number=signal.SIGKILL, to="both"), "run-killed"),
    outside("rank stopped", 66, "run", STOP, "run-rank-stopped", rank=True),
    outside(
        "supervisor killed", 9, "run", Signalled(number=signal.SIGKILL, to="supervisor"), "run-agent-killed", victim=2
    ),
    outside("power lost", 4, "run", PowerLoss(), *UNHEARD, by_hand=BUTTON),
    outside("data's mount dies", 61, "run", dead_mount("/private/data"), "hang-mount"),
    outside(
        "cores rationed",
        69,
        "run",
        RATION,
        "slow-throttled",
        beneath=Broken(fault=CpuQuota(cores=2)),
        env=(("COMPUTE_SECONDS", "0.1"),),
    ),
    own("torn checkpoint", 62, "checkpoint", "torn-checkpoint", "run-raised"),
    outside(
        "disk full",
        60,
        "checkpoint",
        DiskFull(path="/private/out"),
        "run-disk-full",
        "run-raised",
        by_hand=ROOM,
        **_AT_NEXT,
    ),
    outside("rank killed", 65, "checkpoint", KILL, "run-killed", rank=True, env=(("CHECKPOINT_SECONDS", "8"),)),
    outside("power lost", 4, "checkpoint", PowerLoss(), *UNHEARD, by_hand=BUTTON, env=(("CHECKPOINT_SECONDS", "8"),)),
    outside("mount dies", 61, "checkpoint", dead_mount("/private/out"), "hang-mount", **_AT_NEXT),
    own("raises", 63, "evaluation", "raise", "run-raised"),
    outside("rank stopped", 66, "evaluation", STOP, "run-rank-stopped", rank=True, env=(("EVALUATION_SECONDS", "6"),)),
    own(
        "never ends",
        64,
        "end",
        "deadlock",
        "hang-lock",
        "hang-absent",
        "hang-uneven",
        "hang-end",
        env=(("STEPS", "30"),),
    ),
    own("raises", 63, "end", "raise", "run-raised", env=(("STEPS", "30"),)),
)
CASES = (*BEFORE, *START, *INIT, *GOING, *ENDING)
