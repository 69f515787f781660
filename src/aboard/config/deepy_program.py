"""Runs gpt-neox's deepy.py on the head, with DeepSpeed's launcher replaced by one that only reports its arguments."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from aboard.core.launchers.launcher_command import DeepyReport
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands
from aboard.node_scripts.script_source import read_script

# Importing torch, DeepSpeed and megatron from a slow disk takes a minute.
_SECONDS = 300
_QUOTED = 300
# `yaml.scanner.ScannerError: …` at the start of a line; the lines below it say where.
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,100}(?:Error|Exception|Exit|Interrupt|Warning)\b")
_SHOWING = (
    "from megatron.neox_arguments import NeoXArgs; NeoXArgs.consume_deepy_args().get_deepspeed_main_args();"
    " print('no error')"
)


def run_deepy(python: Sequence[str], words: Sequence[str], environ: Mapping[str, str]) -> DeepyReport:
    """What `PYTHON deepy.py WORDS` would pass to DeepSpeed; the InputError has the last line of its own error."""
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as said:
        argv = [*python, "-c", read_script("deepy_reporter"), str(told.fileno()), *words]
        try:
            code = subprocess.run(
                argv,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=(told.fileno(),),
                check=False,
                timeout=_SECONDS,
            ).returncode
            seen = f"it ended with exit code {code}"
        except subprocess.TimeoutExpired:
            seen = f"it did not build its command within {_SECONDS} s"
        except OSError as error:
            seen = f"{escape_text(python[0])}: {error.strerror}"
        told.seek(0)
        report = _read_report(told.read())
        if report is not None:
            return report
        said.seek(0, os.SEEK_END)
        said.seek(max(0, said.tell() - 4096))
        lines = said.read().decode(errors="replace").split("\n")
    last = escape_text(_find_message(lines), _QUOTED)
    shown = pasted_commands.quote_command_line([*python, "-c", _SHOWING, *words[1:]])
    fix = pasted_commands.DEEPY.fix("show", command=shown)
    problem = Problem(where=escape_text(words[0]), seen=f"{seen}: {last}" if last else seen, fix=fix)
    raise InputError(pasted_commands.DEEPY, [problem])


def _find_message(lines: Sequence[str]) -> str:
    """The exception's own lines, without the marks under a line of YAML or code; else the last line."""
    written = [line.rstrip() for line in lines if line.strip(" \t\r^~")]
    raised = next((at for at in reversed(range(len(written))) if _EXCEPTION.match(written[at])), len(written) - 1)
    return " ".join(line.strip() for line in written[max(raised, 0) :])


def _read_report(text: bytes) -> DeepyReport | None:
    try:
        told = json.loads(text)
    except ValueError:  # it ended before it reported
        return None
    return DeepyReport(
        arguments=tuple(map(str, told["arguments"])), env={str(name): str(told["env"][name]) for name in told["env"]}
    )
