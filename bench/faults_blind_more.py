"""More faults that no rule was written for, by somebody who had not read the rules: each of another kind or phase.

The codes are those that a user would take for the cause, chosen only from the explanations of the codes. Each fault was
verified under plain torchrun.
"""

import signal
from dataclasses import replace

from aboard.sandbox.faults.host.control_groups import FewTasks, MemoryLimit
from aboard.sandbox.faults.network.firewall import FirewallDrop
from aboard.sandbox.faults.network.links import LinkDelay
from faults_blind_troubles import (
    ADDRESS_LOST,
    FORGETFUL,
    MUTE_NAMES,
    NO_INODES,
    NO_PORTS,
    READ_ONLY,
    SEVERED,
    SLOW_MOUNT,
    LooseCable,
    Paused,
    SmallerPackets,
    Traced,
)
from faults_cases import Case, outside, own
from faults_troubles import SERVICE, Broken, Signalled, Typed, dead_mount

_SHORT = (("STEPS", "30"),)
_LONG_EVALUATION = (("EVALUATION_SECONDS", "6"),)
# Injected during the run, it takes effect when the next checkpoint is written.
_AT_NEXT: dict[str, object] = {"trigger": "warm", "all_there": True, "effect": "checkpoint"}
_STALE_LOCK = Typed(lines="touch /private/data/build.lock", undo="rm -f /private/data/build.lock")
# The line is changed: of two lines for a name, glibc's getaddrinfo gives both addresses.
_OTHER_MAP = Typed(
    lines="cp /etc/hosts /run/hosts; other=$(getent ahostsv4 n4i | head -n 1 | cut -d ' ' -f 1); "
    'sed "s/.* n1i$/$other n1i/" /run/hosts > /etc/hosts',
    undo="cat /run/hosts > /etc/hosts",
)

_OWN: tuple[Case, ...] = (
    own(
        "hub's packets vanish",
        67,
        "init",
        "hub",
        "init-rank-late",
        "hang-outside",
        beneath=Broken(fault=FirewallDrop(ports="8767", network="management", way="out")),
    ),
    own(
        "data's mount is dead", 61, "init", "file", "hang-mount", "init-rank-late", beneath=dead_mount("/private/data")
    ),
    own(
        "told by a file that only one node has",
        59,
        "init",
        "marker",
        "init-rank-late",
        "storage-not-shared",
        who="all",
        anywhere=True,
        rank=False,
        victim=5,
    ),
    own(
        "a name that is another machine on one node",
        23,
        "init",
        "first-by-name",
        "init-elsewhere",
        "network-names-differ",
        who="all",
        rank=False,
        victim=4,
        beneath=_OTHER_MAP,
    ),
    own("name server doesn't answer", 23, "run", "resolve", "hang-outside", beneath=MUTE_NAMES),
    own("waits for a debugger's user", 67, "run", "remote-debugger", "hang-absent", "hang-outside"),
    own("stale lock of a build", 9, "run", "baton", "hang-lock", "hang-absent", beneath=_STALE_LOCK),
    own("native lock that holds the interpreter", 67, "run", "native-lock", "hang-lock", "hang-absent"),
    own(
        "pool's worker out of memory",
        16,
        "run",
        "pool",
        "run-out-of-memory",
        "hang-data",
        beneath=Broken(fault=MemoryLimit(mib=1300)),
    ),
    own("slow loader", 69, "run", "slow-loader", "slow-data"),
    own("mapped data cut short", 62, "run", "mapped", "run-killed"),
    own("no more threads", 14, "run", "threads", "run-raised", beneath=Broken(fault=FewTasks(tasks=400))),
    own("time of a core used up", 55, "run", "cpu-time", "run-killed"),
    # Gloo ends a rank that receives too much, which is not the one that sends it: a mismatch has two sides.
    own("a call left out", 68, "run", "left-out", "hang-mismatch", rank=False),
    own("group of one rank", 68, "run", "new-group", "hang-mismatch", "hang-absent"),
    own("message that nobody sends", 68, "run", "receive", "hang-mismatch", "hang-absent"),
    own("key that nobody sets", 57, "checkpoint", "key", "hang-absent"),
    own("upload by a program", 67, "checkpoint", "upload", "hang-outside", "hang-absent", beneath=SERVICE),
    own("breakpoint left in", 63, "evaluation", "breakpoint", "run-raised", "hang-absent"),
    own(
        "gathered objects out of memory",
        16,
        "evaluation",
        "gather",
        "run-out-of-memory",
        who="all",
        victim=0,
        beneath=Broken(fault=MemoryLimit(mib=1300)),
    ),
    own(
        "fewer batches",
        64,
        "evaluation",
        "fewer-in-evaluation",
        "hang-mismatch",
        "hang-uneven",
        who="all",
        rank=False,
    ),
    own("barrier with a time-out", 56, "evaluation", "timed-barrier", "hang-absent", who="all"),
    own("gradients added up once more", 64, "run", "not-exchanged", "hang-uneven", effect="end", env=_SHORT),
    own("upload at exit", 67, "end", "upload-at-exit", "hang-outside", beneath=SERVICE, env=_SHORT),
)
_OUTSIDE: tuple[Case, ...] = (
    # No story tells of it; these two lead to the node, and to what torch says there: "Cannot assign requested address".
    outside("no ports left", 30, "init", NO_PORTS, "init-store-no-route", "log-store-unreachable", victim=4),
    outside("debugger attached", 66, "run", Traced(), "hang-traced", rank=True, lasts=True),
    outside("container paused", 66, "run", Paused(), "run-rank-stopped", "hang-absent", lasts=True),
    outside("address lost", 28, "run", ADDRESS_LOST, "hang-link-cut", lasts=True),
    outside("smaller packets on one card", 26, "run", SmallerPackets(), "hang-big-packets", lasts=True),
    outside("loose cable", 29, "run", LooseCable(), "hang-link-down", "hang-link-cut", "slow-link", lasts=True),
    outside("long way", 27, "run", LinkDelay(ms=60, network="fabric"), "slow-link", lasts=True),
    outside("data's mount slow", 69, "run", SLOW_MOUNT, "slow-disk", "slow-data"),
    outside("data's mount severed", 61, "run", SEVERED, "run-raised", "storage-dead-mount"),
    outside(
        "data may not be read",
        59,
        "run",
        Typed(lines="chmod 0 /private/data/shard.bin", undo="chmod 666 /private/data/shard.bin"),
        "run-raised",
        "log-permission",
    ),
    outside("no room for another file", 60, "checkpoint", NO_INODES, "run-disk-full", "run-raised", **_AT_NEXT),
    outside("read-only", 60, "checkpoint", READ_ONLY, "run-raised", **_AT_NEXT),
    outside("firewall forgets", 30, "evaluation", FORGETFUL, "hang-link-cut", env=(("EVALUATION_SECONDS", "3"),)),
    outside(
        "Ctrl-C for one rank",
        65,
        "evaluation",
        Signalled(number=signal.SIGINT),
        "run-raised",
        "run-killed",
        rank=True,
        env=_LONG_EVALUATION,
    ),
)
_UNTRIED = "not judged yet whether a command could fix it"
BLIND_MORE = tuple(replace(case, blind=2, by_hand=_UNTRIED) for case in (*_OWN, *_OUTSIDE))
