"""Messages as people report them, rewritten: each has the address of a report, and what a right answer names."""

import pytest

from aboard.diagnoses import Finding
from aboard.doctor.logs.judge_log import judge_log
from aboard.doctor.logs.log_scanner import LogScanner


def told(text: str) -> list[Finding]:
    reader = LogScanner()
    reader.begin("log.txt")
    for line in text.split("\n"):
        reader.take(line.encode())
    return judge_log(reader.reading())


RAS = """#0-0 (0123456789abcdef) MISMATCH
  Communicator ranks have different AllReduce operation counts
  14 ranks have launched up to operation 70
  2 ranks have launched up to operation 71
  Rank 4 -- GPU 4 managed by process 100 on node 10.7.0.2
  Rank 5 -- GPU 5 managed by process 101 on node 10.7.0.2"""
WORKS = """[rank0]:[E1 ProcessGroupNCCL.cpp:6] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=A, NumelIn=1, NumelOut=1, Timeout(ms)=1)
[rank1]:[E1 ProcessGroupNCCL.cpp:6] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=B, NumelIn=1, NumelOut=1, Timeout(ms)=1)"""  # noqa: E501
PYXIS = """slurmstepd: error: pyxis: child 77 failed with error code: 1
slurmstepd: error: pyxis: printing contents of log file ...
slurmstepd: error: pyxis:     mkdir: cannot create directory '/run/enroot': Permission denied
srun: error: gpu7: task 0: Exited with exit code 1"""
CANCELLED = """slurmstepd: error: *** STEP 9.0 ON gpu1 CANCELLED AT 2026-01-01T00:00:00 ***
Main process received SIGTERM, exiting"""
SSH = """Traceback (most recent call last):
  File "/x/deepspeed/launcher/runner.py", line 4, in main
subprocess.CalledProcessError: Command 'ssh -o PasswordAuthentication=no gpu9 hostname' returned non-zero exit status 255."""  # noqa: E501
ALONE = """#   Rank  0 Pid     10 on     gpu1 device  0 [0x00] X
#   Rank  0 Pid     20 on     gpu2 device  0 [0x00] X"""
WAITING = "\n".join(
    ["WARNING:torch:The node 'a_1_0' has failed to send a keep-alive heartbeat to the rendezvous 'x' due to an error"]
    * 4
)


@pytest.mark.parametrize(
    ("text", "code", "named"),
    [
        # https://github.com/NVIDIA/nccl/issues/1911
        (RAS, "hang-nccl-apart", "2 of 16 ranks (ranks 4-5 on 10.7.0.2) are ahead"),
        # https://github.com/pytorch/torchtune/issues/2093
        (WORKS, "log-collective-timeout", "rank 1 waited in B"),
        # https://github.com/NVIDIA/pyxis/issues/12
        (PYXIS, "log-permission", "/run/enroot"),
        # bigscience: a job that its user cancelled
        (CANCELLED, "log-cancelled", "CANCELLED AT"),
        # https://github.com/deepspeedai/DeepSpeed/issues/4907
        (SSH, "reach-key-refused", "gpu9"),
        # https://github.com/NVIDIA/nccl-tests/issues/107
        (ALONE, "log-separate-worlds", "rank 0"),
        # https://github.com/pytorch/pytorch/issues/76287
        (WAITING, "log-rendezvous-lost", "keep-alive"),
        # https://github.com/NVIDIA/nccl/issues/1737
        (
            "g1:1:2 [0] p.c:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.3<5> with error 5, opcode 0, len 0",
            "log-rdma-flushed",
            "error 5",
        ),
        # https://github.com/NVIDIA/nccl/issues/426
        ("-g1:1:2 [0] n.cc:1 NCCL WARN NET/IB : Got completion with error 12", "collective-fabric-errors", "12"),
        # https://github.com/NVIDIA/nccl/issues/969
        (
            "g1:1:2 [0] NCCL WARN NET/IB : peer 10.0.0.6<5> collective mismatch error, local size 8 remote size 4",
            "hang-mismatch",
            "local size 8 remote size 4",
        ),
        # https://github.com/ai4d-iasc/trixie/issues/45
        (
            "error: *** STEP 6.0 STEPD TERMINATED ON cn9 AT 2026-01-01T00:00:00 DUE TO JOB NOT ENDING WITH SIGNALS ***",
            "run-stubborn",
            "cn9",
        ),
        # https://github.com/leptonai/gpud, testdata of its parts
        ("kern  :warn  : 2026-01-21T04:41:44,285060+00:00 VFS: file-max limit 1000 reached", "host-open-files", "1000"),
        ("<0>[ 98.275598] Kernel panic - not syncing: hung_task", "log-unknown", "not syncing"),
        ("pt_main[7]: segfault at 7f ip 00 sp 00 error 4 in libnccl.so.2[7f+d3]", "log-unknown", "libnccl"),
        ("6,397,22,-;nvidia-peermem cb:127 ERROR detected invalid context", "log-unknown", "invalid context"),
        ("[ERROR] failed to configure all the GPUs or NVSwitches", "log-unknown", "NVSwitches"),
        # https://github.com/sgl-project/sglang/issues/7888
        ("ibv_modify_qp failed\nibrc.cpp:7: non-zero status: 7", "log-unknown", "ibv_modify_qp"),
    ],
)  # fmt: skip
def test_a_report_from_the_field_gets_its_cause(text: str, code: str, named: str) -> None:
    """The first finding has the code, and quotes or names what decides."""
    first = told(text)[0]
    assert first.code == code
    assert named in first.seen
