"""From bare hosts to a trained model without a shared disk: the commands, the transfer against rsync, checkpoints.

--quick leaves out the training, whose imports of torch take longer than a minute on two cores, and the faults.
"""

import json
import os
import sys
from pathlib import Path
from time import monotonic

import aboard
from aboard.sandbox import Host, Sandbox
from bringup_checkpoints import measure_checkpoints
from bringup_hosts import measure_bringup, measure_faults, measure_undo
from bringup_transfer import compare_with_rsync
from figures import Figures, main

SPREAD = (Path(__file__).parents[1] / "tests" / "ground" / "drivers" / "spread_head.py").read_text()
# The driver uses the same Aboard as this bench.
SOURCE = str(Path(aboard.__file__).parents[1])
FOLDER = "/private/model"
UPLINK_MBIT = 200
TIMEOUT = 900.0


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's only option
    """Measures the way from bare hosts to an exported model, section by section."""
    for section in SECTIONS.values():
        section(figures, quick)


def measure_hosts(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - as above
    """Types the commands on bare hosts, with faults and without, and undoes what `trust` did."""
    if quick:
        measure_undo(figures, nodes=2)
    else:
        measure_bringup(figures, nodes=8)
        measure_undo(figures, nodes=8)
        measure_faults(figures, nodes=8)


def measure_transfer(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - as above
    """Compares `aboard sync` with rsync, and kills it in the middle."""
    if quick:
        compare_with_rsync(figures, megabytes=256, files=20_000, rounds=1)
    else:
        compare_with_rsync(figures, megabytes=256, files=20_000, rounds=5)


def measure_parts(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - as above
    """Exports from hosts with disks of their own, and resumes on fewer and on more."""
    if not quick:
        measure_checkpoints(figures)


def measure_peers(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - as above
    """One large file to all hosts: nodes pass it on; against rsync one after another, and all at once."""
    nodes, megabytes = (4, 16) if quick else (16, 256)
    with Sandbox.up(f"bench-peers-{os.getpid()}", nodes=nodes, temporary=True) as box:
        names = [host.name for host in box.nodes]
        make = f"mkdir -p {FOLDER} && head -c {megabytes}M /dev/urandom > {FOLDER}/weights.bin"
        box.head.run(["sh", "-c", make])
        shape = f"tc qdisc add dev eth0 root tbf rate {UPLINK_MBIT}mbit burst 128k latency 50ms"
        assert box.head.run(["sh", "-c", shape], root=True).returncode == 0
        one_seconds, one_bytes = _time_sync(box, names[:1])
        all_seconds, all_bytes = _time_sync(box, names)
        each = f"rsync -a {FOLDER}/ NODE:{FOLDER}/"
        serial_seconds, _ = _time(box, names, "; ".join(each.replace("NODE", name) for name in names))
        at_once = " & ".join(each.replace("NODE", name) for name in names)
        parallel_seconds, _ = _time(box, names, f"{at_once} & wait")
    note = f"{all_bytes / 1e6:.0f} MB against {one_bytes / 1e6:.0f} MB for one host"
    what = f"{megabytes} MB to {nodes} hosts at {UPLINK_MBIT} Mbit/s"
    figures.add(f"{what}: head sends / for one host", all_bytes / one_bytes, 1.5, unit="×", note=note)
    note = f"{all_seconds:.1f} s; one host: {one_seconds:.1f} s"
    for name, seconds in (("rsync one by one", serial_seconds), (f"{nodes} rsyncs at once", parallel_seconds)):
        # With fewer hosts there is less to gain.
        bar = 0.2 * 16 / nodes
        figures.add(f"{what} / {name}", all_seconds / seconds, bar, unit="×", note=f"{note}; rsync: {seconds:.1f} s")


def _time_sync(box: Sandbox, names: list[str]) -> tuple[float, int]:
    return _time(box, names, [sys.executable, "-c", SPREAD, FOLDER, FOLDER, "--peers", *names], no_findings=True)


def _time(box: Sandbox, names: list[str], command: str | list[str], *, no_findings: bool = False) -> tuple[float, int]:
    """The seconds and the bytes that left the head; verifies the files, then deletes them from the hosts."""
    before = _count_sent_bytes(box.head)
    began = monotonic()
    argv = command if isinstance(command, list) else ["sh", "-c", command]
    done = box.head.run(argv, env={"PYTHONPATH": SOURCE}, timeout=TIMEOUT)
    seconds = monotonic() - began
    sent = _count_sent_bytes(box.head) - before
    if done.returncode != 0:
        sys.exit(f"{command} failed with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    assert not no_findings or json.loads(done.stdout.splitlines()[-1])["findings"] == [], done.stdout[-2000:]
    wanted = _hash_files(box.head)
    for name in names:
        host = box.host(name)
        assert _hash_files(host) == wanted, f"{name} has other files: {done.stdout[-2000:]}"
        host.run(["sh", "-c", f"rm -rf {FOLDER} ~/.cache/aboard"])
    return seconds, sent


def _count_sent_bytes(host: Host) -> int:
    return int(host.run(["cat", "/sys/class/net/eth0/statistics/tx_bytes"]).stdout)


def _hash_files(host: Host) -> str:
    return host.run(["sh", "-c", f"cd {FOLDER} && sha256sum -- *"], timeout=TIMEOUT).stdout


SECTIONS = {
    "hosts": measure_hosts,
    "transfer": measure_transfer,
    "peers": measure_peers,
    "checkpoints": measure_parts,
}

if __name__ == "__main__":
    main("bringup", measure, SECTIONS)
