"""The same faults under bare torchrun and DeepSpeed: how long until anything is said, and whether the node is named."""

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
from faults_stage import FOLDER, NODES, PYTHON, RANKS, SLOTS, START_SECONDS, Stage, wait
from faults_try import effect_at

TOOLS = ("torchrun", "deepspeed")
_PORT = 29555
# Who names a node does so soon after the first word.
REST_SECONDS = 10.0
# A link has two ends; who names them all has named none.
MOST_NAMES = 2
# What the job itself says while all is well, and what launchers say at their start.
_USUAL = re.compile(r"step \d+ loss|^\s*$|OMP_NUM_THREADS|\*{10,}|\[INFO\]|cannot be retrieved|accelerator|Warning")


def peers_know(case: Case) -> bool:
    """What only the launch itself looks at is not theirs to find; and with a clock that is set their sleeps fail."""
    return not case.words and case.name != "clock ahead, before"


def try_peer(stage: Stage, case: Case, tool: str) -> dict[str, Any]:
    """Capped: what has not been said by then is not said."""
    before = case.when == "before"
    beneath = case.beneath.on(stage, case.node, case.rank_meant) if case.beneath else contextlib.nullcontext()
    try:
        with beneath, contextlib.ExitStack() as broken:
            if before and case.trouble is not None:
                broken.enter_context(case.trouble.on(stage, case.node, case.rank_meant))
            with _launched(stage, case, tool) as said:
                since = time.time()
                if case.trouble is not None and not before:
                    ranks = range(RANKS) if case.all_there else [case.rank_meant]
                    there = wait(lambda: all(rank in stage.marks(case.trigger) for rank in ranks), START_SECONDS)
                    assert there, f"no mark {case.trigger} under {tool}: {said.text()[-1000:]}"
                    since = time.time()
                    broken.enter_context(case.trouble.on(stage, case.node, case.rank_meant))
                return _listen(stage, case, said, since)
    finally:
        stage.mend(case.node)


def silent_when_well(stage: Stage, tool: str) -> None:
    """What a launcher says of a training that is well must not count as a word about a fault."""
    case = Case(name="nothing", row=0, when="run", codes=("",))
    with _launched(stage, case, tool) as said:
        assert wait(lambda: len(stage.marks("evaluation")) == RANKS, START_SECONDS), said.text()[-2000:]
        words = said.since(0)
    assert not words, f"{tool} says of a training that is well: {words}"


def _listen(stage: Stage, case: Case, said: "Said", since: float) -> dict[str, Any]:
    """Until a node is named, all has been said that was coming, or the cap; or all ranks train in spite of it."""
    effect = None if case.when != "before" else since
    while True:
        effect = effect or effect_at(stage, case, since)
        words = said.since(effect) if effect else []
        naming = _naming(stage, words)
        now = time.time()
        unharmed = case.when == "before" and not words and len(stage.marks("warm")) == RANKS
        if unharmed or now - (effect or since) > (CAP if effect else CAP + 30):
            break
        if naming or (words and (said.over or now > words[0][0] + REST_SECONDS)):
            break
        time.sleep(0.2)
    begun = effect or since
    # The first that is named counts, whatever comes after: ranks that miss one another fail next.
    names = {name for at, name in naming if at == naming[0][0]}
    return {
        "seconds": round(words[0][0] - begun, 2) if words else None,
        "named": (case.node in names or (case.anywhere and bool(names))) and len(names) <= MOST_NAMES,
        "named_seconds": round(naming[0][0] - begun, 2) if naming else None,
        "unharmed": unharmed,
        "said": [f"{at - begun:.1f} {line[:200]}" for at, line in words[:40]],
        "load": round(os.getloadavg()[0], 1),
    }


def _naming(stage: Stage, words: list[tuple[float, str]]) -> list[tuple[float, str]]:
    return [(at, host.name) for at, line in words for host in stage.box.nodes if _names(host, line)]


def _names(host: Host, text: str) -> bool:
    words = (rf"\b{host.name}i?\b", re.escape(host.address) + r"\b", re.escape(str(host.fabric_address)) + r"\b")
    return any(re.search(word, text) for word in words)


class Said:
    """What a launcher prints, and when each line was first seen."""

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
def _launched(stage: Stage, case: Case, tool: str) -> Iterator[Said]:
    stage.clear()
    env = {**stage.env(), **dict(case.env), "PYTHONUNBUFFERED": "1"}
    if case.own:
        place = "step" if case.when == "run" else case.when
        who = case.who or str(case.rank_meant)
        env |= {"FAULT": case.own, "FAULT_RANK": who, "FAULT_PLACE": place, "ODD_RANK": str(case.rank_meant)}
    address = str(stage.box.nodes[0].fabric_address)
    argv = ["sh", "-c", _torchrun(env, address) if tool == "torchrun" else _deepspeed(stage, env, address)]
    with tempfile.NamedTemporaryFile("w+") as file:
        process = stage.box.head.popen(
            argv, cwd=FOLDER, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            yield Said(Path(file.name), process)
        finally:
            process.kill()
            process.wait()
            _sweep(stage)


def _torchrun(env: dict[str, str], address: str) -> str:
    given = " ".join(f"{name}={value}" for name, value in env.items())
    lines = []
    for rank in range(NODES):
        where = f"--nnodes {NODES} --node-rank {rank} --nproc-per-node {SLOTS} --master-addr {address}"
        command = f"cd {FOLDER} && {given} {PYTHON} -m torch.distributed.run {where} --master-port {_PORT} fault_job.py"
        lines.append(f"ssh -o BatchMode=yes n{rank + 1} '{command}' &")
    return "\n".join([*lines, "wait"])


def _deepspeed(stage: Stage, env: dict[str, str], address: str) -> str:
    stage.put("hostfile", "".join(f"n{number} slots={SLOTS}\n" for number in range(1, NODES + 1)))
    stage.put(".deepspeed_env", "".join(f"{name}={value}\n" for name, value in env.items()))
    where = f"--hostfile hostfile --master_addr {address} --master_port {_PORT} --no_local_rank"
    return f"DS_ACCELERATOR=cpu {PYTHON} -m deepspeed.launcher.runner {where} fault_job.py"


def _sweep(stage: Stage) -> None:
    """Launchers leave ranks behind: on our own hosts, whatever runs the job is ended."""
    for host in stage.box.nodes:
        for pid in host.pids() if host.on else ():
            with contextlib.suppress(OSError):
                if b"fault_job.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
