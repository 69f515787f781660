"""A stage of a script: the launch that one of its launchers asked for, or the refusal of that launcher."""

from asyncio import Task
from collections.abc import Sequence

from aboard.core.launchers.capture_failures import build_escape_error
from aboard.core.launchers.captured_launch import Capture
from aboard.diagnoses import InputError, Severity
from aboard.engine.check.check_cluster import CheckReport
from aboard.engine.launch_run import LaunchResult
from aboard.engine.request.launch_spec import LaunchSpec
from aboard.engine.scripts.node_script import EscapedLauncher, ScriptEnd
from aboard.engine.scripts.script_sessions import ScriptSessions
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A launch that a script asks for: the launcher, the scripts that wait for it, and its check if that has begun."""

    spec: LaunchSpec
    first: Capture
    scripts: Sequence[ScriptSessions]
    checking: Task[CheckReport] | None


def refuse_script(error: InputError, end: ScriptEnd | None = None) -> LaunchResult:
    """The result of a script whose launcher can't become a run."""
    findings = [
        error.diagnosis.finding(nodes=(), seen=f"{each.where}: {each.seen}", fix=each.fix, severity=Severity.BLOCK)
        for each in error.problems
    ]
    return LaunchResult(report=None, refused=tuple(findings), script=end)


def require_capture(node: str, outcome: Capture | EscapedLauncher) -> Capture:
    """The capture; raises if the launcher escaped."""
    if isinstance(outcome, EscapedLauncher):
        raise build_escape_error(node, outcome.command, outcome.why)
    return outcome
