"""The fix that a verdict printed, typed as it stands; then the same run goes on, or the next launch trains.

Nothing is healed before that. A line that checks nodes again prints fixes of its own: these are typed next, as whoever
reads them would. Where no line can mend it (a cable, a button, the user's own code), the lines are typed all the same,
since what can't be typed as it stands is no fix.
"""

import re
from collections.abc import Mapping
from typing import Any

from aboard.diagnoses import AboardError
from faults_cases import CLOCK, Case
from faults_stage import FOLDER, RANKS, START_SECONDS, Running, Stage, wait
from typed_fixes import LATE, Typed, type_fix

GOES_ON, TRAINS, SILENT = "typed: the run goes on", "typed: the next launch trains", "typed: the next check is silent"
MENDS = (GOES_ON, TRAINS, SILENT)
NOT_MENDED, NO_FIX = "typed, and NOT mended", "no fix was printed"
_MOVES_SECONDS = 60.0
_STEPS = 3
# `block reach-refused n2 fix: sudo systemctl start ssh    # on n2`
_NEXT = re.compile(r"^(?:block|warn) \S+ \S+ fix: (.*)$", re.MULTILINE)
# The shell's own words for what is no command.
_NO_COMMAND = (126, 127)
Result = dict[str, Any]


def carry_out(stage: Stage, case: Case, running: Running, fix: str, env: Mapping[str, str]) -> Result:
    """While it is broken still: types the fix, and tells what came of it."""
    typed = type_out(stage, fix)
    told = {"fix_lines": [f"{each.where}: {each.line} [{each.code}]" for each in typed], "untypable": untypable(typed)}
    if case.by_hand:
        return {"fix_typed": f"advice only: {case.by_hand}", **told}
    if not fix:
        return {"fix_typed": NO_FIX, **told}
    return {"fix_typed": _came_of_it(stage, case, running, env), **told}


def carry_out_before(stage: Stage, case: Case) -> Result:
    """Before a launch: types what the check says of it, and the next check must not say it again."""
    named = [finding for finding in stage.check(*case.words) if finding["code"] in case.codes]
    fix = "\n".join(finding["fix"] for finding in named)
    # A clock that is set is that of the machine on which all this runs.
    typed = type_out(stage, fix) if case.by_hand != CLOCK else []
    told = {"fix": fix, "fix_lines": [f"{each.where}: {each.line} [{each.code}]" for each in typed]}
    if case.by_hand:
        return {"fix_typed": f"advice only: {case.by_hand}", "untypable": untypable(typed), **told}
    if not fix:
        return {"fix_typed": NO_FIX, "untypable": [], **told}
    left = sorted({finding["code"] for finding in stage.check(*case.words)} & set(case.codes))
    return {"fix_typed": f"{NOT_MENDED}: {left}" if left else SILENT, "untypable": untypable(typed), **told}


def type_out(stage: Stage, fix: str) -> list[Typed]:
    """All its lines, and then those that a check among them prints."""
    try:
        typed = type_fix(stage.box, fix, FOLDER)
        further = [line for each in typed if each.line.startswith("aboard check") for line in _NEXT.findall(each.said)]
        return [*typed, *type_fix(stage.box, "\n".join(further), FOLDER)]
    except (AboardError, StopIteration) as error:
        return [Typed(where="", line=fix, code=_NO_COMMAND[0], said=f"no such place: {error}")]


def untypable(typed: list[Typed]) -> list[str]:
    """Lines that are no command, or that don't end."""
    return [f"{each.line}: {each.said[-200:]}" for each in typed if each.code in (*_NO_COMMAND, LATE)]


def changed(told: Mapping[str, Any]) -> bool:
    """Whether the hosts are others than before: what only looks has no need of root."""
    return not told["fix_typed"].startswith("advice") and any("sudo " in line for line in told["fix_lines"])


def _came_of_it(stage: Stage, case: Case, running: Running, env: Mapping[str, str]) -> str:
    before = running.step()

    def moves() -> bool:
        return running.step() >= before + _STEPS and running.standing() is None

    if not wait(lambda: running.over or moves(), _MOVES_SECONDS):
        return f"{NOT_MENDED}: the run lives, and does not go on"
    if not running.over:
        return GOES_ON
    with stage.launch(*case.words, env=env) as again:
        # The first evaluation comes after the first checkpoint, and after the step at which it broke.
        there = wait(lambda: again.over or len(stage.marks("evaluation")) == RANKS, START_SECONDS)
        well = there and not again.over
        return TRAINS if well else f"{NOT_MENDED}: the next launch does not train: {again.said[-600:]}"
