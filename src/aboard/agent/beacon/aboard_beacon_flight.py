"""The beacon's listener: a thread that answers the supervisor, and samples when the rank came to its collectives.

Both read torch's flight recorder, so that collectives cost nothing themselves.
"""

from __future__ import annotations

import _thread
import os
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False  # typing itself costs each rank 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType
    from typing import Any

    from aboard.agent.beacon.aboard_beacon import Beacon

# Also in agent/inspect/rank_stacks.py.
BEACON_THREAD = "beacon-listener"
# For each group: how many of the last collectives to report, and how many of those with their sizes.
LAST, WHOLE = 48, 4
GROUPS = 16
# Frames of a stack: as many as faulthandler writes.
DEEPEST = 100
ENTRY = ("collective_seq_id", "p2p_seq_id", "is_p2p", "profiling_name", "state", "retired", "time_created_ns")
SIZES = ("input_sizes", "output_sizes", "input_dtypes")


def start_listener(beacon: Beacon, request_path: str) -> None:
    """Starts a thread that waits for the supervisor's requests: the main thread cannot reply while in a collective."""
    import socket  # noqa: PLC0415 - only a rank with a group needs it, and torch has it by now

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(request_path)
    own = os.fstat(listener.fileno()).st_ino, os.getpid()
    arrivals = Arrivals(beacon)

    def answer() -> None:
        with suppress(Exception):
            # The supervisor sends its signals to the thread with this name: in any other they would interrupt a wait.
            with open("/proc/thread-self/comm", "w") as name:
                name.write(BEACON_THREAD)
            # A script may close unknown descriptors and reuse our number.
            while (os.fstat(listener.fileno()).st_ino, os.getpid()) == own:
                listener.settimeout(arrivals.wait())
                try:
                    request = listener.recv(64)
                except socket.timeout:  # before Python 3.10 it is no TimeoutError
                    with suppress(Exception):
                        arrivals.sample()
                    continue
                if not request:
                    return
                with suppress(Exception):
                    if request == b"stacks":
                        _write_stacks(request_path.rpartition(".")[0] + ".stacks")
                    else:
                        beacon.answer('"flight":%s' % _dump_flight_record())

    _thread.start_new_thread(answer, ())


def _write_stacks(path: str) -> None:
    """Writes all threads' stacks in faulthandler's format, the main one last, from Python's own consistent objects."""
    main = sys.modules["threading"].main_thread().ident
    parts = []
    for ident, top in sorted(sys._current_frames().items(), key=lambda pair: pair[0] == main):  # noqa: SLF001 - there is no other
        lines = ["Thread 0x%016x (most recent call first):" % ident]
        frame: FrameType | None = top
        while frame is not None and len(lines) <= DEEPEST:
            code = frame.f_code
            lines.append('  File "%s", line %d in %s' % (code.co_filename, frame.f_lineno or 0, code.co_name))
            frame = frame.f_back
        parts.append("\n".join(lines))
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(file, ("\n\n".join(parts) + "\n").encode("utf-8", "replace"))
    finally:
        os.close(file)


def _dump_flight_record() -> str:
    """The last collectives of each group as JSON, from torch's recorder, whose name differs between versions."""
    import json  # noqa: PLC0415 - only a rank with a group needs it, here and below

    c10d = sys.modules["torch._C._distributed_c10d"]
    groups: dict[str, Any] = {}
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(c10d, name, None)
        trace = json.loads(_recorder.read(dump)) if dump is not None else {}
        status = trace.get("pg_status") or {}
        by_group: dict[str, list[Any]] = {}
        for entry in trace.get("entries") or ():
            by_group.setdefault(str(entry["process_group"][0]), []).append(entry)
        for group, entries in by_group.items():
            last = [[entry.get(key) for key in ENTRY] for entry in entries[-LAST:]]
            for short, entry in zip(last[-WHOLE:], entries[-WHOLE:]):
                short.append([entry.get(key) for key in SIZES])
            # The recorder drops the oldest first; a collective that is still open may be older than the last few.
            still = [[entry.get(key) for key in ENTRY] for entry in entries[:-LAST] if not entry["retired"]]
            progress = status.get(str(entries[-1]["pg_id"])) or {}
            # One group may have two recorders, one for each of its backends.
            groups[group + "+" * (group in groups)] = {
                "what": str(entries[-1]["process_group"][1])[:100],
                "enqueued": int(progress.get("last_enqueued_collective", -1)),
                "completed": int(progress.get("last_completed_collective", -1)),
                "entries": still[:LAST] + last,
            }
    newest = sorted(groups, key=lambda group: groups[group]["entries"][-1][6] or 0)[-GROUPS:]
    # Groups that were created and never used: shows that a rank is a member, even if the others wait for it there.
    group_names = sys.modules["torch.distributed.distributed_c10d"]._world.pg_names  # noqa: SLF001 - there is no other
    for unused in [str(name) for name in list(group_names.values()) if str(name) not in groups][-GROUPS:]:
        groups[unused] = {"what": "", "enqueued": -1, "completed": -1, "entries": []}
        newest.append(unused)
    return json.dumps({"groups": {group: groups[group] for group in newest}})


# -- captures of CUDA graphs -----------------------------------------------------------------------------------------


class Recorder:
    """Reads torch's recorder, which asks CUDA for events, except while a CUDA graph is captured: that would fail it."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._captures = 0

    def read(self, dump: Any, *args: Any) -> Any:
        with self._lock:
            if self._captures:
                raise RuntimeError("a CUDA graph is captured")
            return dump(*args)

    def count(self, captures: int) -> None:
        """Waits for a read that has begun."""
        with self._lock:
            self._captures += captures


_recorder = Recorder()


def follow_captures(graphs: Any) -> None:
    """Counts the captures of this process; `graphs` is the module torch.cuda.graphs."""
    begin, end = graphs.CUDAGraph.capture_begin, graphs.CUDAGraph.capture_end

    def capture_begin(*args: Any, **named: Any) -> Any:
        _recorder.count(1)
        try:
            return begin(*args, **named)
        except BaseException:
            _recorder.count(-1)
            raise

    def capture_end(*args: Any, **named: Any) -> Any:
        try:
            return end(*args, **named)
        finally:
            _recorder.count(-1)

    graphs.CUDAGraph.capture_begin, graphs.CUDAGraph.capture_end = capture_begin, capture_end


# -- arrivals at collectives -----------------------------------------------------------------------------------------

# Ranks sample at the same moments, so that a pause of one is a pause of all: a collective waits for it only once.
SAMPLE_SECONDS = 10.0
# The most CPU time that sampling may take; if it takes longer, it is done less often.
SAMPLE_SHARE = 0.003
# Of all ranks and of one: collectives in a sample. Groups in a sample: the busiest.
ALL_LIMIT, LIMIT, LEAST = 1 << 17, 1024, 64
SAMPLED_GROUPS = 4
RECORDERS = ("_dump_fr_trace", "_dump_nccl_trace")
SIZE_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")


class Arrivals:
    """Reports when this rank issued its collectives since the last sample, by group and sequence number.

    If there are too many, every rank chooses the same ones by a hash of their number, so that they can be compared.
    """

    def __init__(self, beacon: Beacon) -> None:
        self._beacon = beacon
        self._every = SAMPLE_SECONDS
        self._last: dict[str, int] = {}
        world = os.environ.get("WORLD_SIZE", "")
        self._limit = max(LEAST, min(LIMIT, ALL_LIMIT // max(1, int(world) if world.isdigit() else 1)))

    def wait(self) -> float:
        return self._every - time.time() % self._every + 0.001

    def sample(self) -> None:
        if not self._beacon.reached("group"):
            return
        began = time.thread_time()
        self._beacon.answer('"arrivals":%s' % self._describe())
        self._every = SAMPLE_SECONDS
        while time.thread_time() - began > SAMPLE_SHARE * self._every:
            self._every *= 2

    def _describe(self) -> str:
        import json  # noqa: PLC0415 - as above

        c10d = sys.modules["torch._C._distributed_c10d"]
        dumps = [getattr(c10d, name) for name in RECORDERS if hasattr(c10d, name)]
        if any(os.environ.get(name) == "0" for name in SIZE_VARIABLES):
            return '{"why":"disabled"}'
        groups: list[list[Any]] = []
        try:
            for number, dump in enumerate(dumps):
                groups += self._list_groups(dump, number)
        except TypeError:
            dumps = []
        if not dumps:
            return '{"why":"old-torch"}'
        busiest = sorted(groups, key=lambda group: len(group[2]))[-SAMPLED_GROUPS:]
        return json.dumps({"groups": busiest}) if busiest else '{"why":"idle"}'

    def _list_groups(self, dump: Any, number: int) -> Iterator[list[Any]]:
        """[key, name, sequence numbers, microseconds, last number] of each group that had collectives."""
        import pickle  # noqa: PLC0415 - as above

        # With collectives, without stacks, those that are over, too: three times as fast as JSON.
        trace = pickle.loads(_recorder.read(dump, True, False, False))  # noqa: S301 - made by this process
        members = dict(_list_members())
        by_group: dict[Any, dict[int, int]] = {}
        for entry in trace.get("entries") or ():
            if not entry.get("is_p2p"):
                times = by_group.setdefault(entry["process_group"], {})
                times.setdefault(entry["collective_seq_id"], entry["time_created_ns"])
        for (name, what), every_time in by_group.items():
            # A name may stand for different groups on different ranks, and for one in each of two recorders.
            key = "%s/%x/%d" % (name, members.get(name, 0), number)
            last = self._last.get(key, -1)
            times = {seq: at for seq, at in every_time.items() if seq > last}
            if not times:
                continue
            self._last[key] = max(times)
            seqs, chance = sorted(times), 1 << 32
            while len(seqs) > self._limit:
                chance >>= 1
                seqs = [seq for seq in seqs if _hash(seq) < chance]
            shown = str(name if what in ("", "undefined") else what)[:100]
            yield [key, shown, seqs, [times[seq] // 1000 for seq in seqs], self._last[key]]


def _hash(seq: int) -> int:
    seq = seq * 2654435761 & 0xFFFFFFFF
    return ((seq ^ seq >> 15) * 2246822519 & 0xFFFFFFFF) ^ seq >> 13


def _list_members() -> Iterator[tuple[str, int]]:
    """A checksum of the ranks of each group, by its name."""
    from binascii import crc32  # noqa: PLC0415 - as above

    world = sys.modules["torch.distributed.distributed_c10d"]._world  # noqa: SLF001 - there is no other
    for group, ranks in list(world.pg_group_ranks.items()):
        yield str(world.pg_names.get(group)), crc32(repr(sorted(ranks)).encode())
