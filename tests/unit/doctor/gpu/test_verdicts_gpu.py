"""GPUs that failed: what the kernel's log says of them, and what they are the cause of in a run."""

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evidence_builders import NOW, at_collective, ending, evidence, in_collective, process

from aboard.agent.inspect.kernel_log import read_journal, select_fault_lines
from aboard.core.evidence.node_snapshot import RankSnapshot
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.run.event_kinds import RankException
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.gpu.gpu_errors import FaultyPart, parse_gpu_error
from aboard.doctor.judge_evidence import judge_evidence

GPUS = ("0000:1b:00.0", "0000:9b:00.0")
FELL = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FAULT = "NVRM: Xid (PCI:0000:9b:00): 31, pid=4711, name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS"
ECC = "NVRM: Xid (PCI:0000:1b:00): 48, pid=4711, name=pt_main_thread, DBE (double bit error) ECC Error"
SWITCH = "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up"
ENDED = "NVRM: Xid (PCI:0000:9b:00): 45, pid=4711, name=python, Ch 00000010"
LOST = "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."


@pytest.mark.parametrize(
    ("line", "name", "part", "pid"),
    [
        (FELL, "Xid 79", FaultyPart.BUS, None),
        (FAULT, "Xid 31", FaultyPart.PROGRAM, 4711),
        ("NVRM: Xid (0000:af:00): 48, pid='<unknown>', name=<unknown>, Ch 00000008", "Xid 48", FaultyPart.MEMORY, None),
        (
            "NVRM: Xid (PCI:0000:B3:00.0): 119, pid=77, Timeout waiting for RPC from GSP!",
            "Xid 119",
            FaultyPart.PROCESSOR,
            77,
        ),
        (
            "NVRM: Xid (PCI:0000:dc:00): 45, pid=5, name=x, Ch 1 caused by previous Xid 149",
            "Xid 149",
            FaultyPart.LINK,
            5,
        ),
        ("NVRM: Xid (PCI:0000:dc:00): 999, pid=5", "Xid 999", FaultyPart.UNKNOWN, 5),
        (SWITCH, "SXid 20034", FaultyPart.LINK, None),
        ("NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.", "", FaultyPart.BUS, None),
        ("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x26:0x56:1474)", "", FaultyPart.BUS, None),
    ],
)
def test_how_the_driver_tells_an_error(line: str, name: str, part: FaultyPart, pid: int | None) -> None:
    """Its number, who is at fault, and whose process it hit; addresses come with and without their last part."""
    error = parse_gpu_error(f"[ 12.5] {line}")
    assert error is not None
    assert (error.name, error.meaning.part, error.pid) == (name, part, pid)
    assert error.device == error.device.lower()
    assert len(error.device) == len("0000:9b:00")


@pytest.mark.parametrize(
    "line",
    [
        "nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 22013, Non-fatal, Link 60 Minion Link DLREQ interrupt",
        "nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 20034, Severity 1 Engine instance 60 Sub-engine instance 00",
        "NVRM: GPU at PCI:0000:9b:00: GPU-6f1c0000-0000-0000-0000-000000000000",
        "NVRM: GPU 0000:91:00.0: GPU serial number is 1653723052734.",
        "NVRM: Xid (PCI:nonsense): 79",
        "eth0: NIC Link is Down",
    ],
)
def test_what_harms_no_gpu(line: str) -> None:
    """What a switch calls non-fatal, and lines that only say more of one before."""
    assert parse_gpu_error(line) is None


def records(*lines: tuple[float, str]) -> Iterable[bytes]:
    return (b"3,%d,%d,-;%s\n SUBSYSTEM=pci\n" % (at, at * 1e6, said.encode()) for at, said in lines)


def test_a_flood_of_one_error_leaves_room_for_the_first() -> None:
    """A GPU's error is told of each process and each link: the same is one for a while, and other lines stay."""
    flood = [(11.0 + at / 100, ENDED.replace("4711", str(at))) for at in range(500)]
    links = [(12.0 + at / 10, SWITCH.replace("Fatal", f"Severity {at}")) for at in range(50)]
    told = select_fault_lines(
        records((9.0, "oom-kill:x"), (10.0, FELL), *flood, *links, (40.0, ENDED), (41.0, "usb 1-1")), 50.0
    )
    assert [line.split(" ")[0] for line in told] == ["41.0", "40.0", "39.0", "38.0", "10.0"]
    assert told[1] == f"40.0 {FELL}"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("script", "told"),
    [
        (f'echo "[  100.250000] n2 kernel: {FELL}"; echo "[  101.000000] n2 kernel: usb 1-1: new"', [FELL]),
        ('echo "[    1.000000] n2 kernel: usb 1-1: new"; echo "-- No entries --"', []),
        ("exit 0", None),
        ("echo lines; exit 1", None),
        ("exec sleep 60", None),
    ],
)
def test_the_journal_tells_what_the_log_keeps_from_users(
    script: str, told: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where this user may read it, within its time; nothing of it may be read, or it has nothing to say of GPUs."""
    (tmp_path / "journalctl").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = read_journal(2.0)
    assert (found if found is None else [line.partition(" ")[2] for line in found]) == told
    if found:
        assert float(found[0].partition(" ")[0]) == pytest.approx(time.monotonic() - 100.25, abs=5)


# -- a run that stands still ------------------------------------------------------------------------------


def stuck(*lines: str, node: str = "n2", pid: int = 4711, **given: Any) -> Evidence:
    """Eight ranks that wait in the same collective; the kernel of one node has said something."""
    ranks = {at: in_collective(process=process(pid=pid if at == 3 else 900 + at)) for at in range(8)}
    nodes = {name: {"gpus": GPUS, "kernel": ()} for name in ("n1", "n2", "n3", "n4")}
    made = evidence(ranks, nodes={**nodes, node: {"gpus": GPUS, "kernel": lines}}, **{"quiet": 20.0, **given})
    made.run.generation.at = NOW - 3600
    return made


def first(given: Evidence) -> Finding:
    return judge_evidence(given).findings[0]


def test_a_gpu_that_fell_off_the_bus_is_why_all_wait() -> None:
    """All ranks are in the collective, and none of them shows why: the kernel does, and names the GPU."""
    found = first(stuck(f"22.5 {FELL}"))
    assert (found.code, found.nodes, found.ranks, found.severity) == ("gpu-lost", ("n2",), (2, 3), Severity.WARN)
    assert "the kernel on n2 reports Xid 79, GPU 1 at 0000:9b:00: it has fallen off the bus, 22 s ago" in found.seen
    assert "sudo reboot    # on n2" in found.fix


def test_the_rank_that_the_driver_names_is_named() -> None:
    """By the number of its process; what follows from the error is not told as another one."""
    found = judge_evidence(
        stuck(f"21.0 {ECC}", f"20.9 {ENDED}", "20.8 NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action")
    )
    (finding,) = found.findings
    assert (finding.code, finding.ranks) == ("gpu-ecc", (3,))
    assert "GPU 0 at 0000:1b:00" in finding.seen
    assert "nvidia-smi --gpu-reset -i 0000:1b:00.0    # on n2" in finding.fix


def test_what_hangs_for_it_is_folded_under_it() -> None:
    """A rank that never comes to the collective does so for its GPU; the verdict weighs as much as that."""
    given = stuck(f"25.0 {FELL}")
    late = replace(
        in_collective(), process=process(call="futex"), groups=(at_collective(19, over=True),), stack=NO_TEXT
    )
    node = given.snapshots["n2"]
    snapshots = {**given.snapshots, "n2": replace(node, ranks={**node.ranks, 3: late})}
    found = judge_evidence(replace(given, snapshots=snapshots)).findings
    assert [finding.code for finding in found] == ["gpu-lost"]
    assert found[0].severity is Severity.BLOCK
    assert [(each.code, each.ranks) for each in found[0].consequences] == [("hang-lock", (3,))]


def test_a_fault_of_the_program_sends_nobody_for_hardware() -> None:
    """It is told as the likeliest cause, and that the GPU is fine."""
    found = first(stuck(f"21.0 {FAULT}"))
    assert (found.code, found.ranks, found.severity) == ("gpu-xid", (3,), Severity.WARN)
    assert "not the GPU" in found.why
    assert "CUDA_LAUNCH_BLOCKING=1" in found.fix
    for word in ("reboot", "reset", "take n2 out"):
        assert word not in found.fix


def test_a_switch_that_failed_is_a_link() -> None:
    """An SXid that is fatal; the GPU that fell before it comes first."""
    found = first(stuck(f"21.0 {SWITCH}"))
    assert (found.code, found.nodes) == ("gpu-nvlink", ("n2",))
    assert "SXid 20034, NVSwitch at 0000:06:00" in found.seen
    assert first(stuck(f"33.0 {FELL}", f"21.0 {SWITCH}")).code == "gpu-lost"


def test_an_error_that_the_run_outlived_or_that_is_older_is_no_cause() -> None:
    """Steps were made after it, or the run moves: it is worth a line. From before the run it is not told."""
    for given in (stuck(f"600.0 {ECC}"), stuck(f"3.0 {ECC}", quiet=1.0)):
        found = first(given)
        assert (found.code, found.severity) == ("gpu-ecc", Severity.INFO)
    assert judge_evidence(stuck(f"4000.0 {FELL}")).findings == ()


def test_of_a_run_that_tells_no_steps_nobody_knows_for_how_long_it_stands() -> None:
    """Somebody else's training may have hung for an hour: a GPU that is gone is the cause all the same."""
    found = first(stuck(f"3000.0 {FELL}", usual=None, quiet=12.0))
    assert (found.code, found.severity) == ("gpu-lost", Severity.WARN)
    assert first(stuck(f"3000.0 {FELL}", quiet=12.0)).severity is Severity.INFO


def test_a_kernel_log_that_may_not_be_read_is_told() -> None:
    """Only of nodes with GPUs; where it may be read and says nothing, that is told too."""

    def said(given: Evidence) -> str:
        return "\n".join(f"{each.what}: {each.why}" for each in judge_evidence(given).ruled_out)

    given = stuck()
    assert "a failed GPU: the kernel reports no GPU error" in said(given)
    blind = {name: replace(node, kernel=None) for name, node in given.snapshots.items()}
    assert "this user can't read the kernel log on n[1-4]" in said(replace(given, snapshots=blind))
    plain = {name: replace(node, gpus=()) for name, node in blind.items()}
    assert "a failed GPU" not in said(replace(given, snapshots=plain))


# -- a rank that died -------------------------------------------------------------------------------------


def died(given: Evidence, rank: int, message: str, *, ago: float = 10.0, code: int = 1) -> Evidence:
    child = given.run.generation.children[f"n{1 + rank // 2}", str(rank)]
    child.state, child.code, child.at = "exited", code, NOW - ago
    if message:
        child.raised, child.raised_at = (
            RankException(type=Untrusted("RuntimeError"), message=Untrusted(message)),
            NOW - ago,
        )
    return given


def test_a_death_by_a_gpu_is_its_consequence() -> None:
    """The GPU is the verdict, with the node; the exception and the cascade are folded under it."""
    given = died(stuck(f"12.0 {FELL}"), 3, "CUDA error: unspecified launch failure")
    (finding,) = ending(died(given, 6, LOST, ago=9.0))
    assert (finding.code, finding.nodes, finding.ranks) == ("gpu-lost", ("n2",), (3,))
    assert finding.severity is Severity.BLOCK
    assert "Xid 79, GPU 1 at 0000:9b:00" in finding.seen
    assert "rank 3 on n2, training, raised RuntimeError: CUDA error" in finding.seen
    assert [each.code for each in finding.consequences] == ["run-raised", "run-followed"]


def test_a_cry_on_another_node_is_of_the_gpu() -> None:
    """NCCL's watchdog gives up after half an hour, wherever it runs first; the GPU that fell is where it began."""
    words = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 1800000ms"
    (finding,) = ending(died(stuck(f"1812.0 {FELL}"), 6, words))
    assert (finding.code, finding.nodes, finding.ranks) == ("gpu-lost", ("n2",), ())
    (finding,) = ending(died(stuck("1812.0 NVRM: Xid (PCI:0000:9b:00): 63, pid=1, Row Remapper"), 6, words))
    assert finding.code == "run-raised"


@pytest.mark.parametrize(
    ("line", "message", "code"),
    [
        (f"12.0 {FELL}", "No module named 'flash_attn'", 1),
        (f"3.0 {FELL}", "CUDA error: out of memory", 1),
        ("900.0 NVRM: Xid (PCI:0000:9b:00): 63, pid=1, Row Remapper", "CUDA error: invalid argument", 1),
        (f"4000.0 {FELL}", "CUDA error: unspecified launch failure", 1),
        (f"12.0 {FELL}", "", -9),
    ],
)
def test_deaths_that_no_gpu_caused(line: str, message: str, code: int) -> None:
    """Of something else, before the error, long after one that ends nothing, in another run, or by somebody's hand."""
    (finding,) = ending(died(stuck(line), 3, message, code=code))
    assert finding.code in ("run-raised", "run-killed")
    assert "Xid" not in finding.seen


def test_an_illegal_access_is_the_programs_own() -> None:
    """The exception stays the verdict; the driver's word is beside it, and no hardware is sent for."""
    (finding,) = ending(died(stuck(f"10.5 {FAULT}"), 3, "CUDA error: an illegal memory access was encountered"))
    assert (finding.code, finding.ranks) == ("run-raised", (3,))
    assert "Xid 31, GPU 1 at 0000:9b:00: an application error" in finding.seen
    assert "Nothing needs to be repaired" in finding.why
    assert "CUDA_LAUNCH_BLOCKING=1" in finding.fix


def test_a_death_on_a_node_whose_log_may_not_be_read() -> None:
    """Whether its GPU failed is left open, with what to type; a death of something else has nothing to do with it."""
    given = stuck()
    blind = replace(given, snapshots={name: replace(node, kernel=None) for name, node in given.snapshots.items()})
    (finding,) = ending(died(blind, 3, "CUDA error: unspecified launch failure"))
    assert "sudo dmesg -T | grep -i xid    # on n2; did a GPU fail?" in finding.fix
    (finding,) = ending(died(replace(blind), 3, "No module named 'x'"))
    assert "xid" not in finding.fix


def test_a_rank_that_died_has_no_process_to_be_named_by() -> None:
    """Evidence without any look at the node judges as before."""
    given = died(evidence({at: RankSnapshot() for at in range(8)}), 3, "CUDA error: unspecified launch failure")
    (finding,) = ending(replace(given, snapshots={}))
    assert finding.code == "run-raised"
