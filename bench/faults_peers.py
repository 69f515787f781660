"""The same faults under plain torchrun and DeepSpeed: seconds until any output, and whether it names the node."""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aboard.sandbox import Host
from faults_cases import Case
from faults_picture import CAP
from faults_stage import FOLDER, NODES, PYTHON, RANKS, SLOTS, START_SECONDS, Stage, wait_until
from faults_try import find_effect_time

TOOLS = ("torchrun", "deepspeed")
_PORT = 29555
# A tool that names a node does so soon after its first output.
REST_SECONDS = 10.0
# A link has two ends; naming all nodes names none.
MOST_NAMES = 2
# Output of a healthy job, and of launchers at their start.
_USUAL = re.compile(r"step \d+ loss|^\s*$|OMP_NUM_THREADS|\*{10,}|\[INFO\]|cannot be retrieved|accelerator|Warning")


def is_peer_case(case: Case) -> bool:
    """Excludes cases that only our preflight can see; and with a changed clock the peers' sleeps fail."""
    return not case.words and case.name != "clock ahead, before"


def try_peer(stage: Stage, case: Case, tool: str) -> dict[str, Any]:
    """Runs a case under a peer, up to the cap."""
    before = case.when == "before"
    beneath = case.beneath.on(stage, case.node, case.victim_rank) if case.beneath else contextlib.nullcontext()
    try:
        with beneath, contextlib.ExitStack() as broken:
            if before and case.trouble is not None:
                broken.enter_context(case.trouble.on(stage, case.node, case.victim_rank))
            with _launch_peer(stage, case, tool) as output:
                since = time.time()
                if case.trouble is not None and not before:
                    ranks = range(RANKS) if case.all_there else [case.victim_rank]
                    there = wait_until(lambda: all(rank in stage.marks(case.trigger) for rank in ranks), START_SECONDS)
                    assert there, f"no mark {case.trigger} under {tool}: {output.text()[-1000:]}"
                    since = time.time()
                    broken.enter_context(case.trouble.on(stage, case.node, case.victim_rank))
                return _listen_to_output(stage, case, output, since)
    finally:
        stage.restore(case.node)


def require_silence(stage: Stage, tool: str) -> None:
    """Asserts that the launcher's output for a healthy training does not count as a reaction to a fault."""
    case = Case(name="nothing", row=0, when="run", codes=("",))
    with _launch_peer(stage, case, tool) as output:
        assert wait_until(lambda: len(stage.marks("evaluation")) == RANKS, START_SECONDS), output.text()[-2000:]
        words = output.since(0)
    assert not words, f"{tool} prints for a healthy training: {words}"


def _listen_to_output(stage: Stage, case: Case, output: "PeerOutput", since: float) -> dict[str, Any]:
    """Listens until a node is named, the output stops, the cap is reached, or all ranks train in spite of the fault."""
    effect = None if case.when != "before" else since
    while True:
        effect = effect or find_effect_time(stage, case, since)
        words = output.since(effect) if effect else []
        naming = _find_named_nodes(stage, words)
        now = time.time()
        unharmed = case.when == "before" and not words and len(stage.marks("warm")) == RANKS
        if unharmed or now - (effect or since) > (CAP if effect else CAP + 30):
            break
        if naming or (words and (output.over or now > words[0][0] + REST_SECONDS)):
            break
        time.sleep(0.2)
    begun = effect or since
    # Only the first named node counts: other ranks fail as a consequence.
    names = {name for at, name in naming if at == naming[0][0]}
    return {
        "seconds": round(words[0][0] - begun, 2) if words else None,
        "named": (case.node in names or (case.anywhere and bool(names))) and len(names) <= MOST_NAMES,
        "named_seconds": round(naming[0][0] - begun, 2) if naming else None,
        "unharmed": unharmed,
        "said": [f"{at - begun:.1f} {line[:200]}" for at, line in words[:40]],
        "load": round(os.getloadavg()[0], 1),
    }


def _find_named_nodes(stage: Stage, words: list[tuple[float, str]]) -> list[tuple[float, str]]:
    return [(at, host.name) for at, line in words for host in stage.box.nodes if _contains_host(host, line)]


def _contains_host(host: Host, text: str) -> bool:
    words = (rf"\b{host.name}i?\b", re.escape(host.address) + r"\b", re.escape(str(host.fabric_address)) + r"\b")
    return any(re.search(word, text) for word in words)


class PeerOutput:
    """A launcher's output, with the time at which each line appeared."""

    def __init__(self, path: Path, process: "subprocess.Popen[Any]") -> None:
        self._path = path
        self._process = process
        self._seen: list[tuple[float, str]] = []

    @property
    def over(self) -> bool:
        return self._process.poll() is not None

    def text(self) -> str:
        return self._path.read_text(errors="replace")

    def since(self, at: float) -> list[tuple[float, str]]:
        lines = self.text().splitlines()
        now = time.time()
        self._seen += [(now, line) for line in lines[len(self._seen) :]]
        return [(when, line) for when, line in self._seen if when >= at and not _USUAL.search(line)]


@contextlib.contextmanager
def _launch_peer(stage: Stage, case: Case, tool: str) -> Iterator[PeerOutput]:
    stage.clear()
    env = {**stage.env(), **dict(case.env), "PYTHONUNBUFFERED": "1"}
    if case.own:
        place = "step" if case.when == "run" else case.when
        who = case.who or str(case.victim_rank)
        env |= {"FAULT": case.own, "FAULT_RANK": who, "FAULT_PLACE": place, "ODD_RANK": str(case.victim_rank)}
    address = str(stage.box.nodes[0].fabric_address)
    argv = [
        "sh",
        "-c",
        _build_torchrun_script(env, address) if tool == "torchrun" else _build_deepspeed_script(stage, env, address),
    ]
    with tempfile.NamedTemporaryFile("w+") as file:
        process = stage.box.head.popen(
            argv, cwd=FOLDER, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            yield PeerOutput(Path(file.name), process)
        finally:
            process.kill()
            process.wait()
            _kill_leftovers(stage)


def _build_torchrun_script(env: dict[str, str], address: str) -> str:
    variables = " ".join(f"{name}={value}" for name, value in env.items())
    lines = []
    for rank in range(NODES):
        where = f"--nnodes {NODES} --node-rank {rank} --nproc-per-node {SLOTS} --master-addr {address}"
        command = (
            f"cd {FOLDER} && {variables} {PYTHON} -m torch.distributed.run {where} --master-port {_PORT} fault_job.py"
        )
        lines.append(f"ssh -o BatchMode=yes n{rank + 1} '{command}' &")
    return "\n".join([*lines, "wait"])


def _build_deepspeed_script(stage: Stage, env: dict[str, str], address: str) -> str:
    stage.put("hostfile", "".join(f"n{number} slots={SLOTS}\n" for number in range(1, NODES + 1)))
    stage.put(".deepspeed_env", "".join(f"{name}={value}\n" for name, value in env.items()))
    where = f"--hostfile hostfile --master_addr {address} --master_port {_PORT} --no_local_rank"
    return f"DS_ACCELERATOR=cpu {PYTHON} -m deepspeed.launcher.runner {where} fault_job.py"


def _kill_leftovers(stage: Stage) -> None:
    """Kills ranks that a launcher left behind on our hosts."""
    for host in stage.box.nodes:
        for pid in host.pids() if host.on else ():
            with contextlib.suppress(OSError):
                if b"fault_job.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
