"""Messages as people report them, rewritten: each has the address of a report, and what a right answer names."""

import subprocess
import sys

import pytest

from aboard.diagnoses import Finding, Severity
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
        # https://github.com/NVIDIA/pyxis/issues/61
        (
            ("slurmstepd: error: pyxis: container start failed with error code: 1\n"
            "slurmstepd: error: pyxis:     enroot-switchroot: failed to execute: /bin/zsh: No such file or directory"),
            "container-not-started",
            "enroot-switchroot: failed to execute: /bin/zsh",
        ),
        # https://github.com/NVIDIA/nccl/issues/1185
        (
            ("g1:3:5 [2] i.cc:5 NCCL WARN UDS: Binding to socket /tmp/nccl-2 failed : Address already in use (98)\n"
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error."),
            "log-nccl-system",
            "UDS: Binding to socket /tmp/nccl-2",
        ),
        # https://github.com/open-mpi/ompi/issues/4338
        ("PMI2_Init failed to intialize.  Return code: 1", "log-pmi", "PMI2_Init"),
        ("mpirun noticed that process rank 3 on node cn7 exited on signal 9 (Killed).", "run-killed", "rank 3"),
        # https://github.com/sgl-project/sglang/issues/7888
        ("ibv_modify_qp failed\nibrc.cpp:7: non-zero status: 7", "log-nvshmem", "ibv_modify_qp"),
        # https://github.com/sgl-project/sglang/issues/12533
        ("/o/nvshmem/ibgda/ibgda.cpp:3: NULL value cannot allocate mlx5dv_devx_uar", "log-nvshmem", "devx_uar"),
        # https://github.com/deepseek-ai/DeepEP/issues/150
        ("/w/nvshmem/init.cu:3: non-zero status: 7 bootstrap_init failed", "log-nvshmem", "bootstrap_init"),
        # https://github.com/aws/aws-ofi-nccl/issues/24
        ("g1:1:2 [7] create:4 NCCL WARN NET/OFI Couldn't open AV. RC: -22, ERROR: x", "log-ofi", "open AV"),
        # https://github.com/gardener/gardener-extension-provider-aws/issues/1832
        ("g1:1:2 [0] o:2 NCCL WARN NET/OFI Request 0x7 completed with error. Error: 4126", "log-ofi", "4126"),
        # https://github.com/ROCm/rccl/issues/908
        (
            ("g1:1:2 [1] p2p.cc:2 NCCL WARN hipIpcGetMemHandle failed : invalid argument\n"
            "g1:1:2 [1] p2p.cc:3 NCCL WARN Cuda failure 'invalid argument'"),
            "log-rccl",
            "hipIpcGetMemHandle",
        ),
        # https://github.com/ROCm/rccl-tests/issues/16
        ("g1: Test HIP failure common.cu:1 'hipErrorInvalidDevice'", "log-hip-device", "hipErrorInvalidDevice"),
        # https://github.com/ROCm/legacy-rocm-build/issues/4021
        (
            ("[138.91] amdgpu 0000:1c:00.0: {1}uncorrectable hardware error(ERREVENT_X) detected!\n"
            "[138.92] amdgpu 0000:42:00.0: {1}[Hardware Error]: aca entry[00].STATUS=0x98"),
            "log-amd-gpu",
            "0000:1c:00.0",
        ),
        # https://github.com/openpmix/prrte/issues/1127
        (
            "Framework: psec\nComponent: munge\n[cn9:27] PMIX ERROR: NOT-FOUND in file server/pmix_server.c at line 2",
            "log-pmi",
            "Component: munge",
        ),
        # https://github.com/mpi4py/mpi4py/issues/141
        (
            ("but OMPI was not built with SLURM's PMI support and therefore cannot\n"
            "srun: error: cn1: task 0: Exited with exit code 1"),
            "log-pmi",
            "OMPI was not built",
        ),
        # https://github.com/NVIDIA/nccl/issues/928
        (
            "g1:1:2 [1] n.cc:1 NCCL WARN NET/IB : Got completion from peer fe80::96:54%ib0<33> with error 4, opcode 3",
            "fabric-acs",
            "error 4",
        ),
        # https://github.com/NVIDIA/nccl/issues/380, and UCX: https://github.com/openucx/ucx/issues/8684
        ("g1:1:2 [0] misc/ibvwrap.cc:2 NCCL WARN Call to ibv_create_cq failed", "fabric-memlock", "ibv_create_cq"),
        ("[g1:1:0] UCX ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory", "fabric-memlock", "UCX"),
        # https://github.com/NVIDIA/nccl/issues/342
        (
            "g1:1:2 [1] include/shm.h:2 NCCL WARN Call to posix_fallocate failed: No space left on device",
            "host-shm",
            "posix_fallocate",
        ),
        # https://github.com/ArjunaCluster/ArjunaUsers/issues/46 and 123
        ("slurmstepd: error: execve(): /t/job7/slurm_script: No such file or directory", "log-script-lost", "script"),
        ("slurmstepd: error: container_p_join: open failed /s/7/.active: No such file", "reach-prolog", ".active"),
        # https://github.com/elyall/wandb_on_slurm/issues/5
        ("slurmstepd: error: execve(): go.sh: Permission denied", "run-not-started", "go.sh"),
        # https://github.com/snakemake/snakemake-executor-plugin-slurm/issues/225
        ("srun: error: Application launch failed: Unable to layout tasks on given cpus", "log-step-layout", "layout"),
        # https://github.com/StanfordLegion/gasnet/issues/25
        ("srun: error: timeout waiting for task launch, started 0 of 1 tasks", "reach-no-slurmd", "task launch"),
        # https://github.com/chaos/pdsh/issues/109
        (
            "cn7: bash: my-tool: command not found\npdsh@head: cn7: ssh exited with exit code 127",
            "run-exited",
            "my-tool: command not found",
        ),
        # https://github.com/NVIDIA/nccl/issues/2076
        (
            ("[rank5]: torch.distributed.DistBackendError: NCCL error in: N.hpp:2, remote process exited or there was a"
            " network error\n[rank5]: socketProgressOpt: Call to recv from 172.20.3.11<3> failed : Connection reset"),
            "log-peer-lost",
            "172.20.3.11",
        ),
        # https://github.com/NVIDIA/pyxis/issues/84 and 127
        ('slurmstepd: error: Warning: SPANK plugin "pyxis" option "x" not found', "container-not-started", "SPANK"),
        (
            "pyxis: importing docker image: a.sqsh\nslurmstepd: error: pyxis: failed to import docker image",
            "container-not-started",
            "a.sqsh",
        ),
    ],
)  # fmt: skip
def test_a_report_from_the_field_gets_its_cause(text: str, code: str, named: str) -> None:
    """The first finding has the code, and quotes or names what decides."""
    first = told(text)[0]
    assert first.code == code
    assert named in first.seen


SOCKETS = "\n".join(
    f"g{node}:{node}:9 [0] NCCL INFO {text}"
    for node in (1, 2)
    for text in (
        "Bootstrap : Using eth0:10.0.0.1<0>",
        "Using network Socket",
        f"comm 0x1 rank {node - 1} nranks 2 cudaDev 0 - Init COMPLETE",
    )
)


def test_sockets_on_all_nodes_alike_are_a_warning_only_where_a_fabric_shows() -> None:
    """Ethernet alone is as it should be; a switched-off adapter is not. See https://github.com/NVIDIA/nccl/issues/952."""
    (plain,) = told(SOCKETS)
    assert (plain.code, plain.severity, plain.nodes) == ("collective-sockets", Severity.INFO, ("g1", "g2"))
    (excluded,) = told(f"g1:1:9 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n{SOCKETS}")
    assert excluded.severity is Severity.WARN
    assert "NCCL_IB_DISABLE" in excluded.seen


def test_the_judge_of_logs_needs_only_the_standard_library() -> None:
    """It imports nothing that is installed, so it can run wherever Python does, in a browser, too."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "import aboard.doctor.logs.judge_log, aboard.doctor.logs.log_scanner, aboard.doctor.reports.evidence_files\n"
        "from aboard.diagnoses.catalogue import all_diagnoses\n"
        "all_diagnoses()\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(new - set(sys.stdlib_module_names) - {'aboard'}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == ""


def list_steps(clock: str) -> str:
    return "\n".join(f"{clock}:{number:02d} INFO step {number} loss 0.5" for number in range(30))


QUEUE = """JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)
4711 gpu train ann R 1:03 2 gpu[002-003]
4712 gpu other bob PD 0:00 8 (ReqNodeNotAvail, UnavailableNodes:gpu017)
"""


@pytest.mark.parametrize(
    "text",
    [
        QUEUE + list_steps("2026-11-19 08:00"),
        "vocab.json failed (attempt 1 of 3): Connection reset by peer; retrying\n" + list_steps("2026-11-19 08:00"),
        "2026-11-19 07:59:00,1 ERROR no checkpoint: starting at step 0\nTraceback (most recent call last):\n"
        "  File \"/w/train.py\", line 3, in load\nFileNotFoundError: [Errno 2] No such file or directory: 'a.pt'\n"
        + list_steps("2026-11-19 08:00"),
        "2026-11-19 07:59:00,1 INFO sample: Traceback (most recent call last): is a phrase\n"
        + list_steps("2026-11-19 08:00"),
        list_steps("2026-11-19 08:00") + "\nOVERFLOW! Skipping step. Attempted scale: 65536, reducing to 32768" * 6,
        "\n".join(f"ERROR metrics server did not answer\n{list_steps(f'2026-11-19 08:0{each}')}" for each in range(4))
        + "\nERROR metrics server did not answer\n2026-11-19 08:04:01 INFO step 1 loss 0.5",
        "step 1 loss 0.5 sample: Segmentation fault is what geologists never say\n" + list_steps("2026-11-19 08:00"),
    ],
    ids=["another-job-waits", "retried", "handled", "a-phrase", "overflow", "repeated", "quoted"],
)
def test_words_of_a_failure_in_a_run_that_goes_on_alarm_nobody(text: str) -> None:
    """Progress that is known to be later, a retry, another job in a listing, a text that a model wrote."""
    assert [each.code for each in told(text) if each.severity > Severity.INFO] == []


def test_an_error_behind_which_the_run_ends_is_no_handled_one() -> None:
    """Steps of other ranks after it prove nothing when the launcher then reports an exit."""
    steps = list_steps("2026-11-19 08:00")
    error = (
        f"2026-11-19 08:00:30 [rank3]: torch.OutOfMemoryError: CUDA out of memory.\n{list_steps('2026-11-19 08:01')}"
    )
    ends = "\nsrun: error: gpu7: task 3: Exited with exit code 1"
    assert told(f"{steps}\n{error}{ends}")[0].code == "log-gpu-memory"


@pytest.mark.parametrize(
    "line",
    [
        "[    5.663152] mlx5_core: probe of 0000:01:00.0 failed with error -22",
        "[Thu Apr 28 10:11:02 2022] EXT4-fs: error on device md127",
        "kernel: nvme0: controller failed",
    ],
)
def test_a_driver_is_no_node(line: str) -> None:
    """Behind the kernel's prefix, the name before a colon is a driver's; see pocopico/rp-ext, issue 129."""
    (finding,) = told(line)
    assert finding.nodes == ()
