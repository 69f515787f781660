"""`aboard why --log`: causes and echoes, order, who is who, hostile lines, files of any kind."""

import gzip
import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from typed_commands import aboard

from aboard.commands.why.log_files import diagnose_logs
from aboard.diagnoses import Finding, InputError, Severity
from aboard.doctor.gpu.gpu_errors import XIDS, find_xid_meaning
from aboard.doctor.logs.judge_log import find_outcome, judge_log
from aboard.doctor.logs.line_prefixes import parse_log_line
from aboard.doctor.logs.log_scanner import LogScanner
from aboard.doctor.logs.timestamps import parse_timestamp

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
WATCHDOG = (
    "[rank{0}]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation"
    " timeout: WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600060"
    " milliseconds before timing out."
)
CLOSED = "[rank1]: RuntimeError: [pair.cc:547] Connection closed by peer [10.0.0.2]:64737"


def told(*lines: str) -> list[Finding]:
    reader = LogScanner()
    reader.begin("a.log")
    for line in lines:
        reader.take(line.encode())
    return judge_log(reader.reading())


def test_the_script_is_named_where_the_log_has_it() -> None:
    """Argparse says whose arguments they are; then the command can be typed."""
    (finding,) = told("usage: tune.py [-h]", "tune.py: error: unrecognized arguments: --lrr 1")
    assert (finding.code, finding.fix) == ("log-arguments", "python tune.py --help")


def test_a_login_that_was_dropped_is_no_lost_peer() -> None:
    """Ssh says `Connection reset by peer` of a server that drops logins, as ranks do of a peer that died."""
    (finding,) = told("kex_exchange_identification: read: Connection reset by peer")
    assert finding.code == "reach-dropped"


@pytest.mark.parametrize("number", [number for number, meaning in XIDS.items() if meaning.harms])
def test_an_xid_gets_the_diagnosis_of_its_part(number: int) -> None:
    """A log and the kernel's own journal name the same failure for the same number."""
    (finding,) = told(f"n1 kernel: NVRM: Xid (PCI:0000:9d:00): {number}, pid=1, name=python3, words")
    assert finding.diagnosis is find_xid_meaning(number).diagnosis


def test_an_echo_is_folded_under_the_cause() -> None:
    """Who lost a peer is no cause, even where it speaks first."""
    (finding,) = told(CLOSED, f"[rank3]: {OOM}")
    assert (finding.code, finding.ranks) == ("log-gpu-memory", (3,))
    assert [each.code for each in finding.consequences] == ["run-followed"]


def test_a_time_out_is_explained_by_what_failed_before_it() -> None:
    """The watchdogs of the others are consequences of the rank that raised."""
    (finding,) = told(f"[rank3]: {OOM}", WATCHDOG.format(0, 5), WATCHDOG.format(1, 5))
    assert finding.code == "log-gpu-memory"
    assert "log-collective-timeout" in [each.code for each in finding.consequences]


def test_what_comes_long_after_a_time_out_is_no_cause_of_it() -> None:
    """A process that the watchdog took down says all kinds of things at its end."""
    later = "2026-03-21 02:20:00,000 ERROR RuntimeError: CUDA error: unspecified launch failure"
    findings = told(WATCHDOG.format(0, 5), WATCHDOG.format(1, 5), later)
    assert findings[0].code == "log-collective-timeout"


def test_a_kernel_tells_late_and_is_believed() -> None:
    """The line of the out-of-memory killer comes after those of the peers."""
    kernel = "Mar 21 03:00:00 n2 kernel: Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB"
    assert told(CLOSED, WATCHDOG.format(0, 5), kernel)[0].code == "host-oom-kills"


def test_of_two_causes_the_earlier_wins() -> None:
    """By the time that their lines tell, whatever their order in the file."""
    full = "2026-03-21 02:00:00,000 ERROR OSError: [Errno 28] No space left on device"
    files = "2026-03-21 01:00:00,000 ERROR OSError: [Errno 24] Too many open files"
    assert told(full, files)[0].code == "host-open-files"


@pytest.mark.parametrize(("minute", "code"), [("00", "fabric-memlock"), ("30", "log-nccl-system")])
def test_a_special_cause_long_after_is_another_failure(minute: str, code: str) -> None:
    """What happened half an hour before it is not explained by it."""
    (finding,) = told(
        "2026-03-21 02:00:00,000 ncclSystemError: System call (e.g. socket, malloc) or external library call failed",
        f"2026-03-21 02:{minute}:01,000 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
    )
    assert finding.code == code


def test_the_special_cause_speaks_for_the_general_one() -> None:
    """`unhandled system error` is only how torch passes on what NCCL said in full."""
    (finding,) = told(
        "[rank0]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed",
        "n1:7:8 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
    )
    assert (finding.code, finding.nodes, finding.ranks) == ("fabric-memlock", ("n1",), (0,))


def test_addresses_get_the_names_that_the_log_knows() -> None:
    """NCCL's own lines tell whose address it is."""
    (finding,) = told(
        "n4:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.4<0>",
        "n5:2:2 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.4<41> failed : No route to host",
    )
    assert finding.nodes == ("n4", "n5")
    assert "on n4" in finding.fix


@pytest.mark.parametrize(
    ("errno", "code"),
    [
        ("111 - Connection refused", "network-rendezvous-refused"),
        ("113 - No route to host", "network-rendezvous-rejected"),
        ("110 - Connection timed out", "network-rendezvous-dropped"),
    ],
)
def test_hints_tell_readings_of_one_sentence_apart(errno: str, code: str) -> None:
    """One sentence of torch stands for three things; its warnings before know more."""
    (finding,) = told(
        f"[W socket.cpp:663] [c10d] The client socket has failed to connect to [n1]:29500 (errno: {errno}).",
        "[rank2]: DistNetworkError: The client socket has timed out after 60s while trying to connect to (n1, 29500).",
    )
    assert (finding.code, finding.nodes) == (code, ("n1",))


def test_without_hints_all_readings_are_told() -> None:
    """A log alone can't separate them: the commands that can stand in the fix."""
    (finding,) = told(
        "[rank2]: DistNetworkError: The client socket has timed out after 60s while trying to connect to (n1, 29500)."
    )
    assert finding.code == "log-store-unreachable"
    assert "getent hosts n1" in finding.fix
    assert "'</dev/tcp/$0/$1' n1 29500" in finding.fix


def test_an_error_that_the_run_survived_is_only_worth_a_line() -> None:
    """A traceback that was caught, and a hundred steps after it."""
    trace = ["Traceback (most recent call last):", '  File "/w/x.py", line 1, in f', "ValueError: bad row"]
    assert told(*trace)[0].severity is Severity.BLOCK
    steps = [f"step {number} loss 1.0" for number in range(200)]
    assert {finding.severity for finding in told(*trace, *steps)} <= {Severity.INFO}


def test_an_unknown_error_is_said_to_be_one() -> None:
    """With the words themselves, and two commands."""
    (finding,) = told("FrobnicationError: the frob is out of tune")
    assert finding.code == "log-unknown"
    assert "out of tune" in finding.seen
    assert finding.severity is Severity.WARN
    assert "--report-unknown" in finding.fix


def test_the_users_own_line_is_named() -> None:
    """Of a traceback, the last frame that is in no library."""
    (finding,) = told(
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "/w/train.py", line 88, in main',
        '[rank1]:   File "/env/lib/python3.11/site-packages/torch/x.py", line 5, in f',
        "[rank1]: KeyError: 'lr'",
    )
    assert finding.code == "run-raised"
    assert "train.py:88" in finding.seen


@pytest.mark.parametrize(
    ("line", "node", "rank", "text"),
    [
        ("[rank3]: hello", "", 3, "hello"),
        ("gpu07: [rank3]: hello", "gpu07", 3, "hello"),
        ("[1,5]<stderr>:hello", "", 5, "hello"),
        ("Nov 15 08:00:00 n1 kernel: hello", "n1", None, "hello"),
        ("[2026-01-05 10:00:05,101] [INFO] [launch.py:256:main] hello", "", None, "hello"),
        ("ValueError: no host", "", None, "ValueError: no host"),
        ("libcudart.so.11.0: cannot open", "", None, "libcudart.so.11.0: cannot open"),
        ("python3: can't open file", "", None, "python3: can't open file"),
    ],
)
def test_prefixes(line: str, node: str, rank: int | None, text: str) -> None:
    """What launchers put before a line tells who it is from, and is taken off; other words with a colon stay."""
    found = parse_log_line(line)
    assert (found.node, found.rank, found.text) == (node, rank, text)


def test_times_of_several_forms_are_comparable() -> None:
    """Logging, glog with and without the zero, syslog: all one moment."""
    forms = ("2026-03-21 02:07:08,5 x", "[rank0]:[E321 02:07:08.500 f.cpp:1] x", "E0321 02:07:08.500 7 f.py:1] x")
    assert len({parse_timestamp(form) for form in forms}) == 1
    assert parse_timestamp("Mar 21 02:07:08 n1 kernel: x") == int(parse_timestamp(forms[0]) or 0)
    assert parse_timestamp("no time at all") is None


@given(st.lists(st.binary(max_size=200), max_size=30))
def test_any_bytes_can_be_read(lines: list[bytes]) -> None:
    """Nothing that a file can hold stops the reading."""
    reader = LogScanner(all_lines=True)
    reader.begin("x")
    for line in lines:
        reader.take(line)
    judge_log(reader.reading())


def test_a_hostile_log_can_neither_touch_the_terminal_nor_a_pasted_command() -> None:
    """Escape sequences are gone, and what a shell would obey is a part of one quoted word."""
    (finding,) = told("\x1b]0;x\x07FileNotFoundError: [Errno 2] No such file or directory: '/x/$(rm -rf ~);`id`'")
    assert finding.code == "storage-missing"
    assert "\x1b" not in finding.seen + finding.fix
    ran = subprocess.run(
        ["bash", "-c", f"ls() {{ printf '%s|' \"$@\"; }}; {finding.fix}"], check=False, capture_output=True, text=True
    )
    assert ran.stdout.startswith("-ld|/x/$(rm -rf ~);`id`|")


def test_memory_is_bounded_by_symptoms_not_by_lines() -> None:
    """Ten thousand equal errors are one sighting that is counted."""
    reader = LogScanner()
    reader.begin("x")
    for _ in range(10_000):
        reader.take(f"[rank3]: {OOM}".encode())
    (sighting,) = reader.reading().sightings
    assert sighting.count == 10_000


def test_files_of_any_kind(tmp_path: Path) -> None:
    """Packed ones, directories, a last line without an end, lines that never end."""
    (tmp_path / "logs").mkdir()
    with gzip.open(tmp_path / "logs" / "gpu03.log.gz", "wb") as file:
        file.write(f"ok\n{OOM}".encode())
    (tmp_path / "logs" / "long.log").write_bytes(b"x" * 3_000_000)
    found = diagnose_logs([str(tmp_path / "logs")])
    assert (found.findings[0].code, found.findings[0].nodes) == ("log-gpu-memory", ("gpu03",))
    assert len(found.files) == 2


def test_what_cannot_be_judged_is_refused(tmp_path: Path) -> None:
    """An empty or binary file is no healthy log; beside others it is passed over."""
    (tmp_path / "empty").write_bytes(b"\n\n")
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0\0")
    (tmp_path / "log").write_text("step 1 loss 2\n")
    with pytest.raises(InputError) as raised:
        diagnose_logs([str(tmp_path / "empty"), str(tmp_path / "binary")])
    assert [problem.seen for problem in raised.value.problems] == [
        "is empty",
        "is an ELF file: a core dump, a program or a library",
    ]
    assert diagnose_logs([str(tmp_path / "log"), str(tmp_path / "binary")]).outcome == "progress"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """All that can't be read is told at once."""
    with pytest.raises(InputError) as raised:
        diagnose_logs([str(tmp_path / "a"), str(tmp_path / "b")])
    assert len(raised.value.problems) == 2


def test_the_command_line(tmp_path: Path) -> None:
    """A pipe, several files, JSON, and exit codes that scripts can use."""
    piped = aboard("why", "--log", "-", given=f"[rank3]: {OOM}\n".encode())
    assert piped.code == 2
    assert "log-gpu-memory" in piped.stdout
    (tmp_path / "a").write_text("step 1 loss 2\n")
    (tmp_path / "b").write_text(f"{OOM}\n")
    assert aboard("why", "--log", str(tmp_path / "a")).code == 0
    several = aboard("why", "--json", "--log", str(tmp_path / "a"), str(tmp_path / "b"))
    assert json.loads(several.stdout)["findings"][0]["code"] == "log-gpu-memory"
    (tmp_path / "c").write_text("[E] the frob of 10.1.2.3 is out of tune\n")
    unknown = aboard("why", "--log", str(tmp_path / "c"))
    assert (unknown.code, "out of tune" in unknown.stdout) == (1, True)
    reported = aboard("why", "--report-unknown", "--log", str(tmp_path / "c"))
    assert ("out of tune" in reported.stdout, "10.1.2.3" in reported.stdout) == (True, False)
    assert aboard("why", "--log", str(tmp_path / "none")).code == 3
    assert aboard("why", "--json", "log-gpu-memory").code == 3
    assert aboard("why", "--bundle", "x", "--log", "y").code == 3


def outcome(*lines: str) -> str:
    reader = LogScanner()
    reader.begin("a.log")
    for line in lines:
        reader.take(line.encode())
    reading = reader.reading()
    return find_outcome(judge_log(reading), reading)


STEPS = tuple(f"shard {number} of 900 ready" for number in range(1, 200))
OTHER = tuple(f"{letter} says hello" for letter in "abcdefghijklmnopqrstuvwxyz")


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ((*STEPS,), "progress"),
        ((*STEPS, *OTHER), "unknown"),
        (("loading", "{'train_runtime': 3.2, 'epoch': 1.0}"), "completed"),
        (("job 12 exited with exit code 0",), "completed"),
        (("loading", "still loading"), "unknown"),
        (("E1119 10:00:00.123 42 engine.cc:7] the frob is bent",), "trouble"),
        (("[ 12.345678] Kernel panic - not syncing: sysrq",), "trouble"),
        (("<2>[   12.345678] the frob is bent",), "trouble"),
        (("gpu1:12:14 [0] frob.cc:7 NCCL WARN the frob is bent",), "trouble"),
        (
            ("gpu1: frobbing", "WARNING the frob is bent", "WARNING the frob is bent", "WARNING the frob is bent"),
            "trouble",
        ),
        (("ERROR the frob is bent", *STEPS), "progress"),
        (("{'train_runtime': 3.2}", *("WARN the frob is bent",) * 5), "completed"),
        ((f"[rank3]: {OOM}",), "verdict"),
        (("the frob is bent: could not straighten it",), "trouble"),
    ],
)
def test_what_a_log_comes_to(lines: tuple[str, ...], wanted: str) -> None:
    """Trouble without a known message is never silent; progress or an end that went well after it says it was none."""
    assert outcome(*lines) == wanted


def test_unknown_trouble_has_its_place_and_what_came_before() -> None:
    """The worst line leads, with rank and node; wrappers around it don't."""
    lines = (
        *("step 1", "gpu4: [rank5]: frobbing", "gpu4: [rank5]: [E] the frob is bent"),
        "subprocess.CalledProcessError: Command 'frob' returned non-zero exit code",
    )
    (finding,) = told(*lines)
    assert (finding.code, finding.nodes, finding.ranks) == ("log-unknown", ("gpu4",), (5,))
    assert finding.seen.startswith('rank 5 on gpu4: "[E] the frob is bent" (a.log:3)')


def test_a_flood_of_one_line_is_sampled() -> None:
    """What it says is known after some thousands; each rank of a large job is still seen."""
    reader = LogScanner()
    reader.begin("a.log")
    for number in range(22_000):
        reader.take(f"[rank{number % 3000}]: [E] the frob is bent {number}".encode())
    (trouble,) = reader.reading().troubles
    assert 20_000 <= trouble.count < 20_100
