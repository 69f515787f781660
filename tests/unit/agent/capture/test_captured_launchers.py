"""Launchers that a script starts: a real supervisor captures them, and the script goes on with the run's exit code."""

import asyncio
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deadlines import until
from made_events import list_fields
from supervisor_runs import Run, held

from aboard.agent.capture.launcher_captures import build_document
from aboard.core.plan.plan import Start
from aboard.diagnoses import AgentRequestError
from aboard.transport.node_session import NodeSession

SECRET = "hunter2secret"  # noqa: S105 - a value to look for

pytestmark = pytest.mark.ci  # each test starts a supervisor and a script

# Stands for torch's launcher, so that no test imports torch: one that is not captured says so.
LAUNCHER = """
import argparse, subprocess, time
def get_args_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nnodes", "--nodes", default="1")
    parser.add_argument("--nproc-per-node", "--nproc_per_node", default="1")
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("--no-module", dest="module", action="store_false")
    parser.add_argument("--max-restarts", type=int, default="0")
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser
def run(args):
    subprocess.Popen(["sleep", "60"])
    time.sleep(60)
def main(args=None):
    run(get_args_parser().parse_args(args))
if __name__ == "__main__":
    main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with packages, and a torchrun in `programs`."""
    package = tmp_path / "packages" / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "run.py").write_text(LAUNCHER)
    (tmp_path / "programs").mkdir()
    program = tmp_path / "programs" / "torchrun"
    path = f"import sys\nsys.path.append({str(tmp_path / 'packages')!r})"
    program.write_text(f"#!{sys.executable}\n{path}\nfrom torch.distributed.run import main\nmain()\n")
    program.chmod(0o755)
    return tmp_path


def write_script(folder: Path, text: str, program: str = "bash", **env: str) -> Start:
    """The script as a child to start; SECRET must not appear in output."""
    (folder / "run.sh").write_text(text)
    paths = {
        "PATH": f"{folder}/programs:{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": f"{folder}/packages",
    }
    env = {**paths, **env}
    return Start(child="script", argv=(program, "run.sh"), cwd=str(folder), env=env, secrets=("SECRET",), capture=True)


def read_events(run: Run, kind: str) -> list[Any]:
    return [list_fields(event) for event in run.events if event.kind == kind]


def has_withdrawn(run: Run, count: int) -> bool:
    return len(read_events(run, "withdrawn")) == count


async def capture(run: Run, hold: NodeSession, number: int = 1) -> Any:
    """The document of the script's launcher of this number, once it waits."""
    await until(lambda: len(read_events(run, "captured")) >= number or "exited" in run.kinds("script"), 20)
    assert "exited" not in run.kinds("script"), (run.output("script"), run.output("script", "stderr"))
    return await hold.get_capture(number)


PYTHON_CALL = "import torch.distributed.run as r; r.main(['--nnodes', '2', 'train.py', '--lr', '1']); print('later')"
PARSED_CALL = (
    "import torch.distributed.run as r; r.run(r.get_args_parser().parse_args(['--nnodes=2', 'train.py', '-x']))"
)
CHILD_CALL = "import subprocess as s, sys; sys.exit(s.run(['torchrun', '--nnodes', '2', 'train.py']).returncode)"


def test_a_launcher_is_captured_however_it_is_started(clean: list[Run], folder: Path) -> None:
    """By name, by path, as a module, by calls of Python code: the words, the line and what the script has changed."""
    run = Run()
    clean.append(run)
    words = "--nnodes $NNODES train.py --lr 1"
    text = f"""export SIZE=7b; unset DROPPED; ulimit -S -n 512
torchrun {words}
{folder}/programs/torchrun {words}
cd packages
PYTHONPATH=$PYTHONPATH:src \\
  python -u -m torch.distributed.run {words}
for _ in 1; do
  sh -c "exec torchrun {words}"
done
python3 -c "{PYTHON_CALL}"
python3 -c "{PARSED_CALL}"
python3 -c "{CHILD_CALL}"
mpirun -np 2 python train.py
"""
    found = []

    async def story(hold: NodeSession) -> None:
        await hold.start(write_script(folder, text, NNODES="2", DROPPED="1"))
        for number in range(1, 9):
            found.append(await capture(run, hold, number))
            await hold.release_launcher(number, 0)
        await until(lambda: run.finished("script"))

    held(run, story)
    assert run.output("script") == b"later\n", run.output("script", "stderr")
    named = ["torchrun", "--nnodes", "2", "train.py", "--lr", "1"]
    assert [each["argv"] for each in found] == [
        named,
        named,
        ["python", "-m", "torch.distributed.run", *named[1:]],
        named,
        named,
        ["torchrun", "--nnodes", "2", "train.py", "-x"],
        named[:4],
        ["mpirun", "-np", "2", "python", "train.py"],
    ]
    assert {each["launcher"] for each in found[:7]} == {"torchrun"}
    assert [each["line"] for each in found] == [2, 3, 5, 8, 10, 11, 12, 13]
    assert {each["script"] for each in found} == {"run.sh"}
    assert {Path(each["python"]).parent for each in found} == {Path(sys.executable).parent}
    assert [each["cwd"] for each in found] == [str(folder)] * 2 + [f"{folder}/packages"] * 6
    assert {tuple(each["removed"]) for each in found} == {("DROPPED",)}
    assert [each["limits"] for each in found] == [{"n": 512}] * 8
    first, third = found[0]["env"], found[2]["env"]
    assert first == {"SIZE": "7b"}
    assert third == {"SIZE": "7b", "PYTHONPATH": f"{folder}/packages:src"}
    assert [event["number"] for event in read_events(run, "captured")] == list(range(1, 9))


def test_the_script_continues_with_the_exit_code_of_the_run(clean: list[Run], folder: Path) -> None:
    """Its later lines run after the release; a launcher that only prints help runs as it is."""
    run = Run()
    clean.append(run)
    (folder / "packages" / "sitecustomize.py").write_text("import builtins\nbuiltins.answer = 42\n")
    text = "torchrun --help | head -1\ntorchrun a.py --key $SECRET || echo code $?\npython -c 'print(answer)'\nexit 3\n"

    async def story(hold: NodeSession) -> None:
        await hold.start(write_script(folder, text, SECRET=SECRET))
        assert (await capture(run, hold))["argv"][-1] == SECRET
        activity = await hold.get_activity()
        assert (activity.line, activity.script.raw()) == (2, "run.sh")
        assert activity.command.raw().endswith("torchrun a.py --key [secret]")
        assert 0 <= activity.seconds < 20
        with pytest.raises(AgentRequestError, match="no launcher 2"):
            await hold.release_launcher(2, 0)
        await hold.release_launcher(1, 75)
        await hold.release_launcher(1, 75)
        await until(lambda: run.finished("script"))

    held(run, story)
    usage, *rest = run.output("script").decode().splitlines()
    assert usage.startswith("usage: torchrun")
    assert rest == ["code 75", "42"]
    assert read_events(run, "exited") == [{"code": 3}]
    assert not read_events(run, "withdrawn")


REDIRECTED = """
torchrun a.py 2>&1 | tee 1.log
torchrun b.py &> 2.log
torchrun c.py > 3.log
torchrun d.py > /dev/null
echo "read $(torchrun e.py)"
torchrun f.py | true
exec &> 7.log
torchrun g.py
"""


def test_a_launcher_prints_ranks_lines_where_the_script_sends_them(clean: list[Run], folder: Path) -> None:
    """In order, byte by byte, and none where the script's own output goes; a reader that is gone costs nothing."""
    run = Run()
    clean.append(run)
    streams = []

    async def story(hold: NodeSession) -> None:
        await hold.start(write_script(folder, REDIRECTED))
        for number in range(1, 8):
            streams.append((await capture(run, hold, number))["streams"])
            for stream in streams[-1]:
                assert await hold.print_lines(number, stream, f"{stream} {number} ".encode())
                assert await hold.print_lines(number, stream, b"\xff\n")
            await hold.release_launcher(number, 0)
        await until(lambda: run.finished("script"))

    held(run, story)
    both = ["stdout", "stderr"]
    assert streams == [both, both, ["stdout"], [], ["stdout"], ["stdout"], both]
    written = {path.name: path.read_bytes() for path in folder.glob("*.log")}
    expected = {
        f"{number}.log": b"".join(b"%s %d \xff\n" % (each.encode(), number) for each in both) for number in (1, 2, 7)
    }
    assert written == {**expected, "3.log": b"stdout 3 \xff\n"}
    assert run.output("script") == written["1.log"] + b"read stdout 5 \xff\n"
    assert run.output("script", "stderr") == b""


ESCAPES = """
env -i {python} {program} a.py --key $SECRET &
{python} -W ignore -I {program} a.py &
(export PYTHONPATH=$PWD/packages PATH=/usr/bin:/bin; {python} -m torch.distributed.run a.py) &
PYTHONPATH=$PWD/shadow:$PYTHONPATH {python} -m torch.distributed.run a.py &
unshare -Urm torchrun c.py &
/usr/bin/ssh -o 'ProxyCommand sleep 60' n2 "cd /w && torchrun d.py" &
(exec -a /opt/mpi/bin/mpirun sh -c 'sleep 60; true' python e.py) &
bash -lc "PATH=/usr/bin:/bin; {program} --key b.py" &
wait
echo later
"""


def test_a_launcher_that_was_not_captured_is_killed_and_named(clean: list[Run], folder: Path) -> None:
    """Its environment emptied, Python isolated, another PYTHONPATH or sitecustomize, in a container, by a path."""
    run = Run()
    clean.append(run)
    (folder / "shadow").mkdir()
    (folder / "shadow" / "sitecustomize.py").touch()
    text = ESCAPES.format(python=sys.executable, program=folder / "programs" / "torchrun")

    async def story(hold: NodeSession) -> None:
        await hold.start(write_script(folder, text, SECRET=SECRET))
        assert (await capture(run, hold))["argv"] == ["torchrun", "--key", "b.py"]
        await until(lambda: len(read_events(run, "escaped")) == 7, 5)
        await hold.release_launcher(1, 0)
        await until(lambda: run.finished("script"))
        await until(lambda: not run.alive())

    held(run, story)
    found = {event["why"].raw(): [word.raw() for word in event["command"]] for event in read_events(run, "escaped")}
    assert found == {
        "its environment was emptied": ["torchrun", "a.py", "--key", "[secret]"],
        "Python's option -I ignores PYTHONPATH": ["torchrun", "a.py"],
        "it runs in a container": ["torchrun", "c.py"],
        "it is not the ssh of PATH, or PATH was replaced": [
            *("/usr/bin/ssh", "-o", "ProxyCommand sleep 60", "n2", "cd /w && torchrun d.py")
        ],
        "it is not the mpirun of PATH, or PATH was replaced": [
            *("/opt/mpi/bin/mpirun", "-c", "sleep 60; true", "python", "e.py")
        ],
        "PYTHONPATH was replaced": ["python", "-m", "torch.distributed.run", "a.py"],
        "it did not run Aboard's sitecustomize module": ["python", "-m", "torch.distributed.run", "a.py"],
    }
    assert run.output("script") == b"later\n"


def test_a_waiting_launcher_ends_by_signals_and_with_its_run(clean: list[Run], folder: Path) -> None:
    """The script sees which signal; at the end of the run its trap runs, and nothing stays."""
    run = Run()
    clean.append(run)
    commands = ("torchrun a.py", "python -m torch.distributed.run b.py")
    text = "".join(f"{command} || echo $?\n" for command in commands)
    text += "trap 'echo trapped; exit 5' TERM\ntorchrun c.py\n"

    async def story(hold: NodeSession) -> None:
        await hold.start(write_script(folder, text, program="dash"))
        for number, sent in enumerate((signal.SIGTERM, signal.SIGINT), 1):
            assert (await capture(run, hold, number))["line"] == 0
            os.kill(read_events(run, "captured")[-1]["pid"], sent)
            await until(partial(has_withdrawn, run, number))
        await capture(run, hold, 3)
        await hold.end(5.0)
        await until(lambda: run.finished("script"))

    held(run, story)
    assert run.output("script").split() == [b"143", b"130", b"trapped"]
    assert b"Traceback" not in run.output("script", "stderr")
    assert read_events(run, "exited") == [{"code": 5}]


HOSTILE = """
import os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["ABOARD_CAPTURE"])
connection.sendall(bytes.fromhex(sys.argv[1]) + sys.argv[2].encode())
print(connection.recv(100)[4:].decode())
"""


def test_a_stranger_is_refused_and_so_is_what_is_no_document(clean: list[Run], folder: Path) -> None:
    """Only processes of the script may connect, with documents of at most 1 MB; what follows is captured as ever."""
    run = Run()
    clean.append(run)
    big = "for n in 1 2 3 4 5 6 7 8 9; do export BIG$n=$(head -c 120000 /dev/zero | tr '\\0' x); done"
    hostile = "for data in '00200000 x' '00000002 []' '00000002 {}'; do python hostile.py $data; done"
    text = f"{hostile}\n({big}; torchrun a.py; echo $?)\ntorchrun b.py\n"
    (folder / "hostile.py").write_text(HOSTILE)

    async def story(hold: NodeSession) -> None:
        await hold.start(write_script(folder, text))
        assert (await capture(run, hold))["argv"] == ["torchrun", "b.py"]
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(10)
            stranger.connect(str(run.place / "capture.sock"))
            assert await asyncio.to_thread(stranger.recv, 1) == b""
        await hold.release_launcher(1, 0)
        await until(lambda: run.finished("script"))

    held(run, story)
    shown = [
        "",
        '{"refused":"FrameError: a frame that is not an object: b\'[]\'"}',
        '{"refused":"FrameError: no valid launcher: KeyError"}',
        "1",
    ]
    assert run.output("script").decode().splitlines() == shown
    assert b"more than 1048576" in run.output("script", "stderr")


def test_paths_are_as_they_would_be_without_our_entries() -> None:
    """An empty PYTHONPATH stays unset, and keeps its empty entry where the script appends to it."""
    message = {
        "launcher": "torchrun", "argv": ["torchrun", "a.py"], "cwd": "/", "python": "", "files": {}, "script": "",
        "line": 0, "limits": {}, "streams": [],
    }  # fmt: skip
    before = {"PATH": "/bin", "KEPT": "1", "SHLVL": "1"}
    for given, changed in (
        ({"PATH": "/run/capture/bin:/bin", "PYTHONPATH": "/run/capture"}, {}),
        ({"PATH": "/x:/run/capture/bin:/bin"}, {"PATH": "/x:/bin"}),
        ({"PATH": "/bin", "PYTHONPATH": "/run/capture:src"}, {"PYTHONPATH": ":src"}),
        (
            {"PATH": "/bin", "PYTHONPATH": "lib:/run/capture", "__LMOD_REF_COUNT_PYTHONPATH": "lib:1"},
            {"PYTHONPATH": "lib", "__LMOD_REF_COUNT_PYTHONPATH": "lib:1"},
        ),
        ({"PATH": "/bin", "PYTHONPATH": "src", "SHLVL": "3", "ABOARD_CAPTURE": "/s"}, {"PYTHONPATH": "src"}),
    ):
        document = build_document({**message, "env": {**given, "KEPT": "1"}}, before, "/run/capture")
        assert (document["env"], document["removed"]) == (changed, [])
