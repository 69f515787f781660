"""Reports that people have besides logs: for each format one with trouble, and one that is healthy or silent."""

import lzma
import shutil
from pathlib import Path

import pytest

from aboard.commands.why.log_files import LogExplanation, diagnose_logs
from aboard.diagnoses import InputError

CASES = Path(__file__).parents[3] / "cases/reports"
RECORDINGS = Path(__file__).parents[2] / "recordings"


def explain(*names: str | Path) -> LogExplanation:
    """What the files come to; a directory is all of its files."""
    return diagnose_logs([str(CASES / name) for name in names])


@pytest.mark.parametrize(
    ("name", "code", "named", "ranks", "nodes"),
    [
        ("ras-behind.json", "hang-nccl-apart", "1 of 4 ranks (rank 2 on 10.0.0.2) is behind", (2,), ("10.0.0.2",)),
        ("ras-dead.json", "hang-nccl-missing", "rank 3, considered dead", (3,), ("10.0.0.2",)),
        ("flight-behind", "hang-absent", "rank 2 never issued it", (2,), ()),
        ("flight-mismatch", "hang-mismatch", "rank 1 issued all_reduce of [7]", (1,), ()),
        ("ranks-elsewhere", "hang-data", "rank 2 is at train.py:42 in load_batch", (2,), ()),
        ("kernel-xid", "gpu-lost", "GPU has fallen off the bus", (), ("gpu07",)),
        ("journal-hung.txt", "storage-dead-mount", "nfs: server nas1 not responding", (), ("gpu07",)),
        ("fabric-manager-failed.txt", "log-unknown", "aborting fabric manager", (), ()),
        ("gpu-ecc", "gpu-smi", "ERR! for GPU 2", (), ("gpu07",)),
        (RECORDINGS / "throttling/commands/nvidia-smi-q.txt", "gpu-throttled", "HW Thermal Slowdown", (), ()),
        ("sacct-oom.txt", "host-oom-kills", "job 4711 ran out of memory", (), ()),
        ("job-failed.txt", "slurm-ended", "job 4711 failed with exit code 3", (), ()),
        ("nodes-drained.txt", "slurm-node-drained", "GPU fell off the bus", (), ("gpu02",)),
    ],
)
def test_a_report_names_what_is_wrong(
    name: str | Path, code: str, named: str, ranks: tuple[int, ...], nodes: tuple[str, ...]
) -> None:
    """Its code, and the rank and node where the report has them."""
    explanation = explain(name)
    first = explanation.findings[0]
    assert (first.code, first.ranks, first.nodes) == (code, ranks, nodes)
    assert named in first.seen
    assert explanation.outcome == ("trouble" if code == "log-unknown" else "verdict")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ras-healthy.json", "NCCL RAS report"),
        (CASES.parents[1] / "unit/ras/healthy.txt", "NCCL RAS report"),
        ("flight-healthy/healthy_0", "torch flight-recorder dump"),
        ("dmesg-healthy.txt", "kernel log"),
        ("journal-healthy.txt", "journal"),
        ("fabric-manager-healthy.txt", "Fabric Manager log"),
        ("nvidia-smi-healthy.txt", "nvidia-smi table"),
        (RECORDINGS / "a100-roce/commands/nvidia-smi-q.txt", "nvidia-smi -q report"),
        ("sacct-healthy.txt", "sacct table"),
        ("squeue-healthy.txt", "squeue table"),
        ("job-completed.txt", "scontrol job report"),
        ("nodes-healthy.txt", "scontrol node report"),
    ],
)
def test_a_report_that_says_all_is_well_is_healthy(name: str | Path, kind: str) -> None:
    """It is called what it is, and nothing is found."""
    explanation = explain(name)
    assert (explanation.outcome, explanation.kinds, explanation.findings) == ("healthy", (kind,), ())


@pytest.mark.parametrize("name", ["stack-working.txt", "stack-working.json"])
def test_one_stack_shows_where_a_process_is_and_not_why(name: str) -> None:
    """A single dump is no verdict."""
    explanation = explain(name)
    assert (explanation.outcome, explanation.findings) == ("unknown", ())
    assert explanation.last[-1] == "process 2719 is at model.py:31 in forward"


def test_a_report_that_is_cut_off_is_not_called_healthy() -> None:
    """The end of a RAS report has its errors."""
    assert explain(CASES.parents[1] / "unit/ras/cut.txt").outcome == "unknown"
    assert explain(CASES.parents[1] / "unit/ras/uneven.txt").outcome == "unknown"


@pytest.mark.parametrize(
    "content",
    [
        "JobID|State\n",
        "JobId=4 JobName=a\n",
        "NodeName=n1 Arch=x\n",
        "+---+\n| NVIDIA-SMI 550.90 |\n",
        "==NVSMI LOG==\n",
    ],
)
def test_a_report_without_anything_in_it_is_not_called_healthy(content: str, tmp_path: Path) -> None:
    """Cut off behind its first line, it says nothing."""
    (tmp_path / "report").write_text(content)
    with pytest.raises(InputError, match="damaged"):
        diagnose_logs([str(tmp_path / "report")])


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"\x7fELF\x02\x01\x01" + bytes(100), "is an ELF file: a core dump"),
        (b"PK\x03\x04" + bytes(100), "is an archive or checkpoint"),
        (b"\x80\x04\x95" + bytes(100), "is a pickle"),
        (lzma.compress(b"text"), "is compressed"),
        (b"SQLite format 3\0" + bytes(100), "is a database"),
        (b'{\n "model_type": "llama",\n "layers": 2\n}\n', "is a JSON document"),
        (b'{"schemaVersion": 1,\n "traceEvents": [{"ph": "X"}]}\n', "is a trace of a profiler"),
        (b"import torch\n\nraise RuntimeError('timed out')\n", "is a Python script"),
        (b"<!DOCTYPE html><html><body>error: 502</body></html>", "is a page of HTML"),
        (b"\0\1\2\3" * 100, "is not text"),
    ],
)
def test_what_is_neither_is_named_and_not_judged(tmp_path: Path, content: bytes, named: str) -> None:
    """Alone it is an error; beside a log, the answer says that it was not judged."""
    other = tmp_path / "other"
    other.write_bytes(content)
    with pytest.raises(InputError) as raised:
        diagnose_logs([str(other)])
    assert raised.value.problems[0].seen.startswith(named)
    explanation = diagnose_logs([str(CASES / "squeue-healthy.txt"), str(other)])
    assert explanation.unread[0].startswith(f"{other} {named}")


@pytest.mark.parametrize(
    "content",
    [
        b'{"step": 1, "loss": 3.2}\n{"step": 2, "loss": 3.1}\n{"step": 3, "loss": 3.0}\n',
        b'{\n  "model_type": "llama"\n}\nstep 1 loss 3.2\nstep 2 loss 3.1\nstep 3 loss 3.0\n',
        b"[2026-11-19 10:00:00,000] [INFO] [x.py:1:f] step=1\nstep 2 loss 3.1\nstep 3 loss 3.0\n",
    ],
)
def test_a_log_that_begins_like_json_is_a_log(tmp_path: Path, content: bytes) -> None:
    """Lines of JSON, and a configuration that a trainer prints first."""
    log = tmp_path / "log.txt"
    log.write_bytes(content)
    explanation = diagnose_logs([str(log)])
    assert (explanation.outcome, explanation.kinds) == ("progress", ("log",))


ENDED = """2026-11-19 10:30:00 step 10 loss 2.1
2026-11-19 10:41:30 [rank3]: torch.distributed.DistBackendError: NCCL error: remote process exited
2026-11-19 10:41:31 RuntimeError: CUDA error: unspecified launch failure
"""


def test_files_are_one_case_and_their_times_decide(tmp_path: Path) -> None:
    """A GPU that fell off the bus a minute before explains the log; one of three days ago is only a remark."""
    log, old = tmp_path / "train.log", tmp_path / "dmesg.gpu07.txt"
    log.write_text(ENDED)
    together = diagnose_logs([str(log), str(CASES / "kernel-xid")])
    assert (together.findings[0].code, together.findings[0].nodes) == ("gpu-lost", ("gpu07",))
    old.write_text((CASES / "kernel-xid/dmesg.gpu07.txt").read_text().replace("Thu Nov 19", "Mon Nov 16"))
    apart = diagnose_logs([str(log), str(old)])
    assert apart.findings[0].code != "gpu-lost"
    assert "gpu-lost" in [finding.code for finding in apart.findings if finding.severity.word == "info"]


def test_dumps_name_the_rank_and_the_log_its_node(tmp_path: Path) -> None:
    """A timeout in a log says who waited; the flight recorder who was waited for, and the log on which node that is."""
    log = tmp_path / "train.log"
    work = "WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=10, NumelOut=10, Timeout(ms)=600000)"
    log.write_text(
        "gpu02:77:77 [0] NCCL INFO comm 0x1 rank 2 nranks 3 cudaDev 0 busId 1 - Init COMPLETE\n"
        f"gpu01: [rank0]:[E1119 10:41:31.1 ProcessGroupNCCL.cpp:6] [Rank 0] Watchdog caught collective operation"
        f" timeout: {work}\n"
    )
    for name in ("0", "1", "2"):
        shutil.copy(CASES / f"flight-behind/behind_{name}", tmp_path / f"dump_rank_{name}")
    first, *_ = diagnose_logs([str(tmp_path)]).findings
    assert (first.code, first.ranks, first.nodes) == ("hang-absent", (2,), ("gpu02",))
    assert [each.code for each in first.consequences] == ["log-collective-timeout"]
