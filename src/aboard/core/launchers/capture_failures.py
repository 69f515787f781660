"""Errors of scripts whose launcher Aboard could not replace."""

import posixpath
import re
from collections.abc import Sequence

from aboard.core.launchers.captured_launch import Capture
from aboard.core.secrets.secret_scrubber import mask_words
from aboard.diagnoses import Finding, InputError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import captured_scripts
from aboard.diagnoses.usage.pasted_commands import quote_command_line

# How a script ended that reports no failure.
FINE = "ended with exit code 0"
_LONGEST_COMMAND = 300
_FORBIDDEN = re.compile(r"can't start (\S+): Permission denied")
# What the node's reason says, and the fix.
_ESCAPES = (
    ("container", "container"),
    ("srun of PATH", "srun"),
    ("of PATH", "starter"),
    ("runs as", "user"),
    ("emptied", "emptied"),
    ("option -", "isolated"),
    ("PYTHONPATH", "path"),
)


def build_no_launcher_error(node: str, command: Sequence[str], end: str, launch: Sequence[str]) -> InputError:
    """The script ended on the first node; `launch` are the words that the user typed before `--`."""
    seen = f"{_join(command)} {end}, and called no launcher"
    if (forbidden := _FORBIDDEN.search(end)) and "/" in forbidden[1]:
        return InputError.of(captured_scripts.NONE, node, seen, "mode", script=forbidden[1], node=node)
    rest = {
        "launch": quote_command_line([*launch, "--no-capture"]),
        "command": quote_command_line(mask_words(command)),
    }
    return InputError.of(captured_scripts.NONE, node, seen, "rank" if end == FINE else "failed", **rest)


def build_late_failure(run: str, node: str, end: str) -> Finding:
    """The script ended with an error after all of its runs had succeeded."""
    seen = f"its run has succeeded; then the script on {node} {end}"
    return captured_scripts.AFTER.finding(nodes=(node,), seen=seen, fix=captured_scripts.AFTER.fix(run=run))


def build_missing_launcher_error(node: str, end: str, first: Capture) -> InputError:
    """The script of a node ended, while that of the `first` called a launcher."""
    seen = f"the script {end}, and called no launcher; on {first.node}, {_describe(first)}"
    return InputError.of(captured_scripts.MISSING, node, seen)


def build_parallel_error(running: Capture, second: Capture) -> InputError:
    """A script called a second launcher before the first one had ended."""
    seen = f"{_describe(second)}, while {_describe(running)}"
    return InputError.of(captured_scripts.PARALLEL, second.node, seen)


def build_escape_error(node: str, command: Sequence[str], why: str) -> InputError:
    """A launcher ran without Aboard's replacement and was ended; `why` and `command` come from the node, masked."""
    seen = f"{_join(command)} was started in a way that Aboard can't replace ({escape_text(why)}), and was ended"
    variant = next((variant for words, variant in _ESCAPES if words in why), "other")
    blanks = {"starter": posixpath.basename(command[0])} if variant == "starter" else {}
    return InputError.of(captured_scripts.ESCAPED, node, seen, variant, **blanks)


def _describe(capture: Capture) -> str:
    place = f"{escape_text(capture.script)}, line {capture.line}, " if capture.line else "it "
    return f"{place}calls {_join(capture.argv)}"


def _join(words: Sequence[str]) -> str:
    return escape_text(quote_command_line(mask_words(words)), _LONGEST_COMMAND)
