"""The beacon in real ranks of a real supervisor: what it tells, and that nobody else notices it."""

import asyncio
import json
import os
import secrets
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deadlines import slowness, until
from made_events import list_fields
from supervisor_runs import Run, held

from aboard.agent import process_tree
from aboard.agent.beacon.report_receiver import ACTIVITIES, STACKS_SIGNAL
from aboard.core.plan.plan import Start
from aboard.diagnoses.untrusted import Untrusted
from aboard.transport.node_session import NO_STACKS, NodeSession

pytestmark = pytest.mark.ci  # each test starts a supervisor and its ranks

# What a process of the rank's sees of us.
LOOK = """
import json, os, sys
names = ("ABOARD_BEACON", "ABOARD_CHILD", "ABOARD_STACKS", "PYTHONPATH")
found = {name: os.environ[name] for name in names if name in os.environ}
status = open("/proc/self/status").read()
found["caught"] = int(status.partition("SigCgt:")[2].split()[0], 16) >> BIT & 1
found["path"] = [part for part in sys.path if part.startswith("/tmp/aboard-%d/" % os.getuid())]
found["hook"] = sys.excepthook.__module__ == "aboard_beacon"
found["modules"] = sorted(name for name in sys.modules if name.startswith("aboard"))
print(json.dumps(found), flush=True)
""".replace("BIT", str(STACKS_SIGNAL - 1))
ARMED = {
    "caught": 1,
    "path": [],
    "hook": True,
    "modules": ["aboard_beacon", "aboard_beacon_flight", "aboard_beacon_torch"],
}
CLEAN: dict[str, Any] = {"caught": 0, "path": [], "hook": False, "modules": []}


@pytest.fixture(autouse=True)
def no_path_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks inherit what the shell around the tests has set, and must be seen to have none from us."""
    monkeypatch.delenv("PYTHONPATH", raising=False)


def rank(source: str, *, child: str = "a", beacon: bool = True, **more: Any) -> Start:
    """A child that runs Python as users do: with site, and with what the environment says."""
    return Start(child=child, argv=(sys.executable, "-c", source), beacon=beacon, **more)


def ran(run: Run, start: Start) -> None:
    """Runs one child to its end."""

    async def story(hold: NodeSession) -> None:
        await hold.start(replace(start, beacon=True))
        await until(lambda: "exited" in run.kinds(start.child) and run.finished(start.child), 20)

    held(run, story)


def told(run: Run, kind: str) -> list[dict[str, Any]]:
    return [dict(list_fields(event)) for event in run.events if event.kind == kind]


def test_the_rank_is_armed_and_its_children_are_clean(clean: list[Run], tmp_path: Path) -> None:
    """By fork, by spawn and by a new program: none of them has anything of us, nor says anything."""
    run = Run()
    clean.append(run)
    script = tmp_path / "script.py"
    script.write_text(
        LOOK.replace("import json, os, sys", "import json, multiprocessing, os, subprocess, sys\ndef look():")
        .replace("\n", "\n    ")
        .replace("\n    import json", "\nimport json")
        .replace("\n    def look", "\ndef look")
        + f"""
if __name__ == "__main__":
    look()
    if os.fork() == 0:
        look()
        sys.exit(0)
    os.wait()
    for way in ("fork", "spawn"):
        child = multiprocessing.get_context(way).Process(target=look)
        child.start()
        child.join()
    subprocess.run([sys.executable, "-c", {LOOK!r}])
"""
    )
    ran(run, Start(child="a", argv=(sys.executable, str(script))))
    own, *others = (json.loads(line) for line in run.output("a").splitlines())
    assert run.output("a", "stderr") == b""
    assert own == ARMED
    assert len(others) == 4
    # A fork keeps the modules of its parent, and nothing that acts.
    assert [{**other, "modules": []} for other in others] == [CLEAN] * 4
    assert [other["modules"] for other in others][2:] == [[], []]
    assert told(run, "phase") == [{"phase": "started"}]


def test_without_a_beacon_there_is_nothing_at_all(clean: list[Run]) -> None:
    """No file, no socket, no variable, no phase."""
    run = Run()
    clean.append(run)
    seen: list[set[str]] = []

    async def story(hold: NodeSession) -> None:
        await hold.start(rank(LOOK + "sys.stdin.read()\nimport time\ntime.sleep(300)", beacon=False))
        await until(lambda: run.output("a"))
        seen.append({path.name for path in run.place.iterdir()})
        assert (await hold.stacks())["a"] == NO_STACKS + "it has no beacon"

    held(run, story)
    assert json.loads(run.output("a")) == CLEAN
    assert seen == [{"supervisor.log", "supervisor.sock", "0.stdout.0", "0.stderr.0"}]
    assert not told(run, "phase")


@pytest.mark.parametrize(
    ("theirs", "printed", "complained"),
    [
        ("", "None None", ""),
        ("import sys\nsys.mine = 7", "7 sitecustomize.py", ""),
        ("raise ValueError('theirs')", "None None", "Error in sitecustomize; set PYTHONVERBOSE for traceback:"),
        ("import nowhere_at_all", "None None", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
    ],
    ids=["none", "one", "raises", "misses"],
)
def test_the_users_own_sitecustomize_runs_as_ever(
    clean: list[Run], tmp_path: Path, theirs: str, printed: str, complained: str
) -> None:
    """It is found behind ours, runs under its own name, and fails as it would; the user's path stays."""
    run = Run()
    clean.append(run)
    if theirs:
        (tmp_path / "sitecustomize.py").write_text(theirs)
    source = "import os, sys\nown = sys.modules.get('sitecustomize')\nprint(getattr(sys, 'mine', None), "
    source += "own and own.__file__.rpartition('/')[2], os.environ['PYTHONPATH'])"
    # -S keeps this machine's own out, if it has one; site is then called by hand, as Python would.
    argv = (sys.executable, "-Sc", "import site\nsite.execsitecustomize()\n" + source)
    ran(run, Start(child="a", argv=argv, env={"PYTHONPATH": str(tmp_path)}))
    assert run.output("a").decode().split() == [*printed.split(), str(tmp_path)]
    assert complained in run.output("a", "stderr").decode()
    assert bool(complained) == bool(run.output("a", "stderr"))
    assert told(run, "phase") == [{"phase": "started"}]


@pytest.mark.parametrize(
    ("torch", "expected"),
    [("", [700, 10, 10, True]), ("gc.set_threshold(5, 6, 7)", [5, 6, 7, True]), ("1 / 0", [700, 10, 10, True])],
    ids=["as before", "its own", "raises"],
)
def test_pythons_collector_rests_only_while_torch_is_imported(
    clean: list[Run], tmp_path: Path, torch: str, expected: list[object]
) -> None:
    """Its thresholds are then what they were, or what the import made them."""
    run = Run()
    clean.append(run)
    (tmp_path / "torch.py").write_text(f"import gc\nprint(gc.get_threshold()[0])\n{torch}\n")
    source = "import gc, json\ntry:\n    import torch\nexcept ZeroDivisionError:\n    pass\n"
    source += "print(json.dumps([*gc.get_threshold(), gc.isenabled()]))"
    ran(run, Start(child="a", argv=(sys.executable, "-c", source), env={"PYTHONPATH": str(tmp_path)}))
    during, after = run.output("a").decode().splitlines()
    assert (during, json.loads(after)) == ("0", expected)


def test_setup_lines_and_shell_scripts_carry_it_to_the_first_python(clean: list[Run]) -> None:
    """A shell has no use for it, and passes it on."""
    run = Run()
    clean.append(run)
    ran(run, Start(child="a", argv=("sh", "-c", 'export A=b; "$0" -c "$1"; exit 3', sys.executable, LOOK)))
    assert json.loads(run.output("a")) == ARMED
    assert told(run, "phase") == [{"phase": "started"}]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f():\n    raise ValueError('boom')\nf()", ("ValueError", "boom", "in f\nValueError: boom\n")),
        ("import sys\nsys.excepthook = lambda *a: None\n1 / 0", ("ZeroDivisionError", "division by zero", "zero\n")),
        ("import json\njson.loads('x')", ("json.decoder.JSONDecodeError", "Expecting value", "char 0)\n")),
        ("class E(Exception):\n    def __str__(self): 1 / 0\nraise E", ("E", "<exception str() failed>", "")),
    ],
    ids=["raises", "other hook", "qualified", "no text"],
)
def test_a_script_that_dies_leaves_its_exception(clean: list[Run], source: str, expected: tuple[str, str, str]) -> None:
    """Type, message and trace, once, before its exit is told."""
    run = Run()
    clean.append(run)
    ran(run, rank(source))
    kind, message, trace = expected
    (raised,) = told(run, "raised")
    assert raised["type"] == kind
    assert raised["message"].startswith(message)
    assert trace in raised["trace"]
    assert run.kinds("a") == ["started", "phase", "raised", "exited"]


@pytest.mark.parametrize("source", ["import sys; sys.exit(3)", "import os; os._exit(4)", "pass"])
def test_an_exit_is_no_exception(clean: list[Run], source: str) -> None:
    """SystemExit with a code ends a script as it wished."""
    run = Run()
    clean.append(run)
    ran(run, rank(source))
    assert run.kinds("a") == ["started", "phase", "exited"]


def test_an_exception_is_cut_to_size_and_keeps_no_secret(clean: list[Run]) -> None:
    """Neither in the middle nor in half at the edge where it is cut."""
    run = Run()
    clean.append(run)
    secret = secrets.token_hex(16)
    source = "import os\nt = os.environ['TOKEN']\nraise ValueError(t + 'x' * (2000 - 42) + t + 'y' * (8000 - 42) + t)"
    ran(run, rank(source, env={"TOKEN": secret}, secrets=("TOKEN",)))
    (raised,) = told(run, "raised")
    assert 1900 < len(raised["message"]) <= 2000
    assert 7900 < len(raised["trace"]) <= 8000
    for text in raised.values():
        assert not any(secret[n : n + 8] in text for n in range(len(secret) - 8))
    assert raised["message"].startswith("[secret]xxx")


ERROR = {"message": {"message": "RuntimeError: no luck", "extraInfo": {"py_callstack": "Traceback…", "timestamp": "1"}}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps(ERROR), [{"type": "RuntimeError", "message": "no luck", "trace": "Traceback…", "error": ""}]),
        (
            '{"message": "terminated in C++: 5"}',
            [{"type": "", "message": "terminated in C++: 5", "trace": "", "error": ""}],
        ),
        ("{", []),
        ("[" * 100_000, []),
        ('{"message": {"message": 1}}', []),
        ('{"message": null}', []),
    ],
    ids=["torch's", "C++'s", "half", "deep", "no text", "nothing"],
)
def test_torchs_error_file_speaks_for_a_rank_that_said_nothing(
    clean: list[Run], text: str, expected: list[dict[str, str]]
) -> None:
    """It is read as data: what is not of its shape says nothing."""
    run = Run()
    clean.append(run)
    source = f"import os\nopen(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write({text!r})\nos._exit(3)"
    ran(run, rank(source))
    assert told(run, "raised") == expected
    assert run.kinds("a")[-1] == "exited"


def test_the_beacon_is_believed_before_the_error_file(clean: list[Run], tmp_path: Path) -> None:
    """With both there is one exception; a file of the user's own choice is left alone, as is that of a good end."""
    run = Run()
    clean.append(run)
    write = f"import os\nopen(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write({json.dumps(ERROR)!r})\n"

    async def story(hold: NodeSession) -> None:
        await hold.start(rank(write + "raise KeyError('b')", child="both"))
        await hold.start(rank(write, child="good"))
        env = {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "mine.json")}
        await hold.start(rank(write + "os._exit(5)", child="own", env=env))
        await until(lambda: sum(event.kind == "exited" for event in run.events) == 3)

    held(run, story)
    assert [(event.child, list_fields(event)["type"]) for event in run.events if event.kind == "raised"] == [
        ("both", "KeyError")
    ]
    assert (tmp_path / "mine.json").exists()


STUCK = {
    "python": "all(True for _ in iter(int, 1))",
    "c": "sum(range(10**15))",
    "kernel": "os.read(os.pipe()[0], 1)",
}


@pytest.mark.parametrize("where", STUCK)
def test_stacks_of_a_rank_that_is_stuck(clean: list[Run], where: str) -> None:
    """In Python, in C code that never lets go, in the kernel: each says where it is, twice alike, and goes on."""
    run = Run()
    clean.append(run)
    # On one line, so that it stands there as soon as it has printed.
    source = f"import os\ndef deep():\n    print('ready', flush=True); {STUCK[where]}\ndeep()"

    async def story(hold: NodeSession) -> None:
        await hold.start(rank(source))
        await until(lambda: run.output("a"))
        for _ in range(2):
            text = (await hold.stacks(["a"]))["a"].raw()
            assert "line 3 in deep" in text
            assert text.count("most recent call first") == 1
        assert run.kinds("a") == ["started", "phase"]

    held(run, story)


@pytest.mark.parametrize("own", [False, True])
def test_a_rank_that_native_code_aborts_tells_where_it_was(clean: list[Run], *, own: bool) -> None:
    """No Python handler runs then; faulthandler writes its stack, into the user's own file if there is one."""
    run = Run()
    clean.append(run)
    enable = "import faulthandler; faulthandler.enable()" if own else ""
    source = f"import os\n{enable}\ndef deep():\n    os.abort()\ndeep()"

    async def story(hold: NodeSession) -> None:
        await hold.start(rank(source))
        await until(lambda: "exited" in run.kinds("a"))
        (event,) = [event for event in run.events if event.kind == "exited"]
        stack = list_fields(event).get("stack", Untrusted(""))
        assert list_fields(event)["code"] == -signal.SIGABRT
        assert ("line 4 in deep" in stack) is not own

    held(run, story)


def test_why_there_are_no_stacks(clean: list[Run]) -> None:
    """Stopped, without a handler, with the file closed, ended, unheard of: each has its reason, none is harmed."""
    run = Run()
    clean.append(run)
    ready = "print('ready', flush=True)\ntime.sleep(300)"

    async def story(hold: NodeSession) -> None:
        sources = {
            "stopped": ready,
            "deaf": f"import faulthandler\nfaulthandler.unregister({STACKS_SIGNAL})\n{ready}",
            "closed": f"import os\nos.closerange(3, 1024)\n{ready}",
            "ended": "print('ready')",
        }
        for child, source in sources.items():
            await hold.start(rank("import time\n" + source, child=child))
        await hold.start(Start(child="shell", argv=("sleep", "300"), beacon=True))
        await until(lambda: all(run.output(child) for child in sources) and "exited" in run.kinds("ended"))
        await hold.signal("stopped", signal.SIGSTOP)
        why = await hold.stacks(within=0.3)
        assert why["stopped"].endswith("did not write its stacks within 0.3 s: it is stopped")
        assert why["deaf"].endswith("does not listen to the beacon's signal")
        assert why["closed"].endswith("has closed the beacon's file")
        assert why["ended"] == NO_STACKS + "it is not running"
        assert why["shell"] == NO_STACKS + "it has no beacon"
        assert all(text.startswith(NO_STACKS) for text in why.values())
        assert sum(event.kind == "exited" for event in run.events) == 1
        await hold.signal("stopped", signal.SIGCONT)

    held(run, story)


def test_a_supervisor_that_is_stopped_holds_up_no_rank(clean: list[Run]) -> None:
    """With nobody to read what it says, a rank comes to its end as fast as ever; its end is told later."""
    run = Run()
    clean.append(run)
    source = """
import sys, time
beacon = next(o for o in __import__("gc").get_objects() if type(o).__name__ == "Beacon")
sys.stdin.read()
print("ready", flush=True)
while not __import__("os").path.exists(sys.argv[1]): time.sleep(0.01)
began = time.monotonic()
for step in range(1000): beacon.mention('"step":%d' % step)
print(time.monotonic() - began, flush=True)
raise ValueError("unheard")
"""

    async def story(hold: NodeSession) -> None:
        argv = (sys.executable, "-c", source, str(run.place / "go"))
        await hold.start(Start(child="a", argv=argv, beacon=True))
        await until(lambda: run.output("a"))
        pid = next(list_fields(event)["pid"] for event in run.events if event.kind == "started")
        supervisor = run.supervisor()
        guard = process_tree.read_parents()[supervisor]
        # The guard first, since it would wake the supervisor.
        for stopped in (guard, supervisor):
            os.kill(stopped, signal.SIGSTOP)
        try:
            (run.place / "go").touch()
            # Until the bridge continues its supervisor, nobody waits for the rank.
            await until(lambda: not process_tree.read_state(pid), 3)
        finally:
            for stopped in (guard, supervisor):
                os.kill(stopped, signal.SIGCONT)
        await until(lambda: "exited" in run.kinds("a") and run.finished("a"))

    held(run, story)
    assert float(run.output("a").split()[1]) < 0.5 * slowness()
    assert list_fields(run.events[-3])["code"] == 1


def test_a_socket_that_is_gone_breaks_no_rank(clean: list[Run]) -> None:
    """Nor one that never was where the environment says."""
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        await hold.start(rank("import time\ntime.sleep(300)", child="first"))
        await until(lambda: told(run, "phase"))
        (run.place / "beacon.sock").unlink()
        await hold.start(rank("print('well')\nraise ValueError"))
        await until(lambda: "exited" in run.kinds("a") and run.finished("a"))

    held(run, story)
    assert run.output("a") == b"well\n"
    assert run.output("a", "stderr").decode().splitlines()[-1] == "ValueError"
    assert run.kinds("a") == ["started", "exited"]


def test_what_is_no_report_is_ignored(clean: list[Run]) -> None:
    """Whatever lands in the socket, the supervisor lives on; a snapshot has the number of such reports."""
    run = Run()
    clean.append(run)
    node: dict[str, Any] = {}
    good = {"child": "a", "pid": 1, "wall": time.time()}
    junk = [b"", b"\0" * 70_000, b"[" * 60_000, b"7", b"{}", b'{"child":{}}', *(
        json.dumps({**good, **bad}).encode() for bad in (
            {"child": "b", "phase": "torch"}, {"phase": "dancing"}, {"phase": ["torch"]},
            {"phase": "torch", "wall": []},
            {"step": "x"}, {"step": -1}, {"step": 2**60}, {"step": 1e400}, {"step": 5, "seconds": float("nan")},
            {"raised": 5}, {"raised": {"type": "T"}}, {}, {"phase": "started"},
        )
    )]  # fmt: skip

    async def story(hold: NodeSession) -> None:
        await hold.start(rank("import time\ntime.sleep(300)"))
        await until(lambda: told(run, "phase"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as talk:
            talk.connect(str(run.place / "beacon.sock"))
            for datagram in (*junk, json.dumps({**good, "phase": "group"}).encode()):
                await asyncio.get_running_loop().run_in_executor(None, talk.send, datagram)
        await until(lambda: len(told(run, "phase")) == 2)
        snapshot, _offset = await hold.request_snapshot(1.0, brief=True)
        node.update(snapshot["node"])

    held(run, story)
    # The last one is valid, and no news.
    assert node["malformed"] == len(junk) - 1
    assert told(run, "phase") == [{"phase": "started"}, {"phase": "group"}]
    assert not told(run, "raised")


def test_samples_come_once_a_second(clean: list[Run]) -> None:
    """The node's load, and each child's memory, processor time and step."""
    run = Run()
    clean.append(run)
    samples: list[dict[str, Any]] = []

    async def story(hold: NodeSession) -> None:
        hold._on_samples = lambda _node, told: samples.append(told)
        await hold.start(rank("while True: pass"))
        await until(lambda: told(run, "phase"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as talk:
            talk.connect(str(run.place / "beacon.sock"))
            talk.send(json.dumps({"child": "a", "wall": time.time(), "step": 12, "seconds": 0.5}).encode())
        await until(lambda: len(samples) == 3)

    held(run, story)
    figures = samples[2]["children"]["a"]
    assert (figures["step"], figures["step_seconds"]) == (12, 0.5)
    assert figures["rss"] > 2**20
    assert 0 < figures["cpu"] < 1.5
    assert 0.8 < samples[2]["wall"] - samples[1]["wall"] < 3 * slowness()
    assert {"load", "memory"} <= set(samples[0]["node"])


def test_the_parts_of_a_checkpoint_are_told(clean: list[Run]) -> None:
    """By the trainer, through the beacon; what makes no sense is counted and dropped."""
    run = Run()
    clean.append(run)
    source = (
        "import aboard_beacon as b\n"
        """b.armed.answer('"saved":{"checkpoint":"step-000002","serial":3,"files":["a","b"]}')\n"""
        """b.armed.answer('"saved":{"checkpoint":"step-000002","serial":-1,"files":[]}')\n"""
        """b.armed.answer('"saved":"no"')\n"""
        # The head would take neither, and drop the link to the whole node.
        """b.armed.answer('"saved":{"checkpoint":"step-000003","serial":4,"files":[],"marker":"?"}')\n"""
        """b.armed.answer('"saved":{"checkpoint":"step-000004","serial":5,"files":[],"marker":["0"]}')\n"""
    )
    ran(run, rank(source))
    (saved,) = told(run, "saved")
    assert (saved["checkpoint"], saved["serial"], saved["files"]) == ("step-000002", 3, ("a", "b"))


COMPILES = """
import os, sys, time
sys.path.insert(0, DIRECTORY)
import torch._dynamo.callback as dynamo
for callback in dynamo.callback_handler.starts: callback("args")
while not os.path.exists(os.path.join(DIRECTORY, "compiled")): time.sleep(0.02)
for callback in dynamo.callback_handler.ends: callback("args")
while True: time.sleep(1)
"""
DYNAMO = """
class Handler:
    def __init__(self): self.starts, self.ends = [], []
    def register_start_callback(self, callback): self.starts.append(callback)
    def register_end_callback(self, callback): self.ends.append(callback)
callback_handler = Handler()
"""


def test_a_rank_reports_that_torch_compiles(clean: list[Run], tmp_path: Path) -> None:
    """From the first callback of torch's compiler to the last, whoever compiles; torch is played by a stand-in."""
    (tmp_path / "torch" / "_dynamo").mkdir(parents=True)
    for name, text in (("__init__", ""), ("_dynamo/__init__", ""), ("_dynamo/callback", DYNAMO)):
        (tmp_path / "torch" / f"{name}.py").write_text(text, "utf-8")
    run = Run()
    clean.append(run)
    doing: list[int] = []

    async def story(hold: NodeSession) -> None:
        hold._on_samples = lambda _node, sample: doing.append(sample["children"].get("a", {}).get("doing", 0))
        await hold.start(rank(COMPILES.replace("DIRECTORY", repr(str(tmp_path)))))
        await until(lambda: doing and doing[-1] == ACTIVITIES.index("compiling"))
        (tmp_path / "compiled").touch()
        await until(lambda: doing[-1] == 0)

    held(run, story)
