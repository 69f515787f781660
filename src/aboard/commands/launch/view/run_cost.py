"""What failures cost a run: the goodput and where the other time went, and the recovery that is going on."""

from collections.abc import Mapping

from rich.cells import cell_len
from rich.text import Text

from aboard.commands.shared.labelled_text import wrap_labelled
from aboard.core.run.run_ledger import FAILURE_TIMES, RECOVERY_TIMES, REPEATED, STEPS
from aboard.core.run.run_progress import RunProgress
from aboard.core.text.durations import format_duration
from aboard.diagnoses.untrusted import escape_text

# Shorter times are left out.
_LEAST_SECONDS = 0.05
_LEAST_SHARE = 0.005
_LINES, _LONGEST = 2, 1000
_NAMES = {REPEATED: "repeated steps"}
_OTHER_STEPS = "slow or lost steps, saves and evaluations"


def format_cost(spent: Mapping[str, float], goodput: float | None, *, restarts: int) -> tuple[str, str]:
    """What it is, and the seconds that were no new step, the longest first; two empty texts if there is nothing to say.

    A script may train long before Aboard sees a step of it, so its starts are not counted as lost.
    """
    wall = sum(spent.values())
    kinds = RECOVERY_TIMES if goodput is not None else FAILURE_TIMES
    costs = {_NAMES.get(kind, kind): spent.get(kind, 0.0) for kind in kinds}
    if goodput is not None:
        # With it, the list and the goodput add up to the whole time.
        costs[_OTHER_STEPS] = spent.get(STEPS, 0.0) - goodput * wall
    times = sorted(((seconds, name) for name, seconds in costs.items()), reverse=True)
    parts = [
        f"{name} {format_duration(seconds)}"
        for seconds, name in times
        if seconds >= max(_LEAST_SECONDS, _LEAST_SHARE * wall)
    ]
    listed = f"{': ' if parts else ''}{', '.join(parts)}"
    if goodput is not None:
        return "goodput", f"{goodput:.0%} of {format_duration(wall)}{listed}"
    lost = format_duration(sum(seconds for seconds, _ in times))
    return ("lost", f"{lost} of {format_duration(wall)}{listed}") if restarts else ("", "")


def format_recovery(progress: RunProgress, room: int) -> str:
    """`attempt 2 of 11: n3 lost a GPU (gpu-xid): n9 takes over; 12 s`, with the observation cut to the room."""
    recovery = progress.recovery
    if recovery is None:
        return ""
    limit = f" of {recovery.most}" if recovery.most else ""
    code = f" ({recovery.code})" if recovery.code else ""
    begin, end = (
        f"attempt {recovery.attempt}{limit}: ",
        f"{code}: {recovery.doing}; {format_duration(recovery.seconds)}",
    )
    seen = escape_text(recovery.seen, _LONGEST)
    left = max(0, room - cell_len(begin) - cell_len(end))
    return f"{begin}{seen if cell_len(seen) <= left else seen[: max(0, left - 1)] + '…'}{end}"


def render_recovery(progress: RunProgress, width: int) -> list[Text]:
    """At most two lines."""
    label = Text("recovery  ", style="dim")
    text = format_recovery(progress, _LINES * (width - label.cell_len) - _LINES * 8)
    return list(wrap_labelled(label, text, width, style="bold yellow"))[: _LINES + 1] if text else []
