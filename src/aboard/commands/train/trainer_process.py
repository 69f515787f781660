"""Runs the trainer's own modules in separate processes, so that the head never imports torch."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import aboard
from aboard.core.decoding import DecodeError, decode, parse_json
from aboard.core.plan.training_settings import Training
from aboard.diagnoses import AboardError
from aboard.diagnoses.catalogue import unpack_error
from aboard.diagnoses.untrusted import escape_text
from aboard.trainer.checks.training_rules import RankMemoryNeeds
from aboard.trainer.diagnoses import training as training_failures

MEMORY_MODULE = "aboard.trainer.memory.worker"
# Enough to import torch and build a model without weights on a busy head.
_MEMORY_SECONDS = 120.0


class TrainerProcess:
    """A module that can start early, to import torch in the background; each further request starts it again."""

    def __init__(self, module: str, *args: str) -> None:
        self._module = module
        self._args = args
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> "subprocess.Popen[bytes]":
        """Starts the process. Must not precede a fork: it reads until every copy of its input pipe is closed."""
        if self._process is None:
            pipe = subprocess.PIPE
            argv = [sys.executable, "-P", "-m", self._module, *self._args]
            self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env=_build_env(os.environ))
        return self._process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    async def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Returns the JSON object on the last line of output; raises an Aboard error that the module reports."""
        process = self.begin()
        try:
            payload = json.dumps(request).encode()
            out, err = await asyncio.to_thread(process.communicate, payload, seconds)
        except subprocess.TimeoutExpired:
            self.__exit__()
            raise _make_error(self._module, f"no reply within {seconds:g} s") from None
        self._process = None
        output, errors = out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        return _parse_answer(self._module, output, errors, process.returncode)


async def ask_trainer(
    module: str, *args: str, request: Mapping[str, Any] | None = None, seconds: float
) -> dict[str, Any]:
    """Starts a module, sends one request and returns its reply."""
    with TrainerProcess(module, *args) as trainer:
        return await trainer.ask(request or {}, seconds)


async def estimate_memory(
    trainer: TrainerProcess, training: Training, model: Path, ranks: Mapping[str, int], room: int | None, *, gpus: bool
) -> RankMemoryNeeds:
    """The trainer's estimate of the memory per rank; `room` is the memory of the smallest rank, or None."""
    # The worker reads the model's config on the head, where it was downloaded.
    here = replace(training, model=str(model))
    request = {"training": asdict(here), "ranks": dict(ranks), "memory": room, "gpus": gpus}
    reply = await trainer.ask(request, _MEMORY_SECONDS)
    try:
        return decode(RankMemoryNeeds, reply, strict=True)
    except DecodeError as error:
        seen = f"{MEMORY_MODULE} returned an unexpected reply: {error}"
        raise AboardError(training_failures.ASKED, seen, "report") from None


def _parse_answer(module: str, out: str, err: str, code: int) -> dict[str, Any]:
    try:
        answer = parse_json(out.strip().rpartition("\n")[2])
    except ValueError:
        answer = None
    if isinstance(answer, dict) and (error := unpack_error(answer.get("error"))):
        raise error
    if not isinstance(answer, dict) or code:
        last = err.strip().rpartition("\n")[2] or f"it exited with {code} without output"
        raise _make_error(module, last)
    return answer


def _make_error(module: str, why: str) -> AboardError:
    seen = f"{module}: {escape_text(why, 300)}"
    return AboardError(training_failures.ASKED, seen, "run", python=sys.executable, module=module)


def _build_env(environ: Mapping[str, str]) -> dict[str, str]:
    """The head's environment, offline, with this installation of Aboard first on the path."""
    home = str(Path(aboard.__file__).parents[1])
    path = os.pathsep.join(filter(None, [home, environ.get("PYTHONPATH", "")]))
    return {**environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
