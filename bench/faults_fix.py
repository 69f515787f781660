"""Types the printed fix of a verdict and observes whether the run continues or the next launch trains.

Nothing is healed before that. A line that checks nodes again prints its own fixes: these are typed next, as a reader
would. Where no command can fix the fault (a cable, a button, the user's own code), the lines are typed all the same,
since a line that cannot be typed as printed is not a fix.
"""

import re
from collections.abc import Mapping
from typing import Any

from aboard.diagnoses import AboardError
from faults_cases import CLOCK, Case
from faults_stage import FOLDER, RANKS, START_SECONDS, Running, Stage, wait_until
from typed_fixes import LATE, Typed, type_fix

GOES_ON, TRAINS, SILENT = "typed: the run goes on", "typed: the next launch trains", "typed: the next check is silent"
MENDS = (GOES_ON, TRAINS, SILENT)
NOT_MENDED, NO_FIX = "typed, and NOT mended", "no fix was printed"
_MOVES_SECONDS = 60.0
_STEPS = 3
# `block reach-refused n2 fix: sudo systemctl start ssh    # on n2`
_NEXT = re.compile(r"^(?:block|warn) \S+ \S+ fix: (.*)$", re.MULTILINE)
# The shell's exit codes for something that is not a command.
_NO_COMMAND = (126, 127)
Result = dict[str, Any]


def apply_fix(stage: Stage, case: Case, running: Running, fix: str, env: Mapping[str, str]) -> Result:
    """Types the fix while the fault is still there, and returns the result."""
    typed = type_all_lines(stage, fix)
    told = {
        "fix_lines": [f"{each.where}: {each.line} [{each.code}]" for each in typed],
        "untypable": list_untypable(typed),
    }
    if case.by_hand:
        return {"fix_typed": f"advice only: {case.by_hand}", **told}
    if not fix:
        return {"fix_typed": NO_FIX, **told}
    return {"fix_typed": _observe_result(stage, case, running, env), **told}


def apply_fix_before_launch(stage: Stage, case: Case) -> Result:
    """Before a launch: types the check's fixes; the next check must not report the fault again."""
    named = [finding for finding in stage.check(*case.words) if finding["code"] in case.codes]
    fix = "\n".join(finding["fix"] for finding in named)
    # Setting the clock would set that of the whole machine.
    typed = type_all_lines(stage, fix) if case.by_hand != CLOCK else []
    told = {"fix": fix, "fix_lines": [f"{each.where}: {each.line} [{each.code}]" for each in typed]}
    if case.by_hand:
        return {"fix_typed": f"advice only: {case.by_hand}", "untypable": list_untypable(typed), **told}
    if not fix:
        return {"fix_typed": NO_FIX, "untypable": [], **told}
    left = sorted({finding["code"] for finding in stage.check(*case.words)} & set(case.codes))
    return {"fix_typed": f"{NOT_MENDED}: {left}" if left else SILENT, "untypable": list_untypable(typed), **told}


def type_all_lines(stage: Stage, fix: str) -> list[Typed]:
    """Types all lines, then those that a check among them prints."""
    try:
        typed = type_fix(stage.box, fix, FOLDER)
        further = [
            line for each in typed if each.line.startswith("aboard check") for line in _NEXT.findall(each.output)
        ]
        return [*typed, *type_fix(stage.box, "\n".join(further), FOLDER)]
    except (AboardError, StopIteration) as error:
        return [Typed(where="", line=fix, code=_NO_COMMAND[0], output=f"no such place: {error}")]


def list_untypable(typed: list[Typed]) -> list[str]:
    """Lines that are not commands, or that do not finish."""
    return [f"{each.line}: {each.output[-200:]}" for each in typed if each.code in (*_NO_COMMAND, LATE)]


def has_changed_hosts(told: Mapping[str, Any]) -> bool:
    """Whether typed lines changed the hosts: lines that only inspect do not use sudo."""
    return not told["fix_typed"].startswith("advice") and any("sudo " in line for line in told["fix_lines"])


def _observe_result(stage: Stage, case: Case, running: Running, env: Mapping[str, str]) -> str:
    before = running.step()

    def moves() -> bool:
        return running.step() >= before + _STEPS and running.standing() is None

    if not wait_until(lambda: running.over or moves(), _MOVES_SECONDS):
        return f"{NOT_MENDED}: the run lives, and does not go on"
    if not running.over:
        return GOES_ON
    with stage.launch(*case.words, env=env) as again:
        # The first evaluation comes after the first checkpoint and after the step at which the fault occurred.
        there = wait_until(lambda: again.over or len(stage.marks("evaluation")) == RANKS, START_SECONDS)
        well = there and not again.over
        return TRAINS if well else f"{NOT_MENDED}: the next launch does not train: {again.output[-600:]}"
