"""The earliest death of a run, and whether a death is only an echo: a rank that reports a lost peer."""

import re
from functools import cache
from operator import attrgetter

from aboard.core.evidence.run_evidence import Evidence
from aboard.core.run.run_state import Generation, RankProcess
from aboard.diagnoses.catalogue import list_output_patterns
from aboard.diagnoses.output_patterns import PatternRole, PatternSource
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.death.container_refusals import find_refusal
from aboard.doctor.death.explain_rank_death import is_mild

# An echo follows the original death within this time.
_ECHO_SECONDS = 5.0


def find_first_death(evidence: Evidence) -> RankProcess | None:
    """The earliest death on the corrected clock that isn't an echo of another one."""
    now = evidence.run.generation
    # What a supervisor itself says about why it ended its ranks counts for more than how they died of it.
    ends = [end.at for end in now.supervisor_ends.values()]
    decided = min([float("inf") if now.decided is None else now.decided, *ends])
    dead = sorted((child for child in now.dead if child.died_at <= decided), key=attrgetter("died_at"))
    if not dead or not is_echo(evidence, dead[0]):
        return dead[0] if dead else None
    if find_lost_node(evidence):
        return None
    near = [
        child for child in dead if child.died_at <= dead[0].died_at + _ECHO_SECONDS and not _is_ended_by_us(now, child)
    ]
    return next((child for child in near if not is_echo(evidence, child)), dead[0])


def is_echo(evidence: Evidence, process: RankProcess) -> bool:
    """Whether a death only reports that a peer could not be reached or timed out."""
    text = read_last_words(evidence, process)
    # A registry that refuses a connection reads like a lost peer.
    return is_echo_text(text) and find_refusal(evidence, process) is None


def is_echo_text(text: Untrusted) -> bool:
    """Whether a rank's last words only report that a peer could not be reached or timed out."""
    return any(text.match(pattern) for pattern in _list_echo_patterns())


def read_last_words(evidence: Evidence, process: RankProcess) -> Untrusted:
    """The exception of a rank that died, else its last lines on stderr without warnings."""
    if process.raised is not None:
        return process.raised.text
    return Untrusted("\n".join(line.raw() for line in get_tail(evidence, process)[-5:] if not is_mild(line)))


def get_tail(evidence: Evidence, process: RankProcess) -> tuple[Untrusted, ...]:
    return evidence.tails.get(process.rank, ())


def find_lost_node(evidence: Evidence) -> str:
    """The first node that was lost while its ranks ran, else a silent one; "" if there is none."""
    now = evidence.run.generation
    return next(iter((*now.lost, *(name for name, place in now.connections.items() if place.state == "cut"))), "")


def _is_ended_by_us(now: Generation, process: RankProcess) -> bool:
    """Whether Aboard terminated it after another rank's death."""
    return now.ending is not None and process.at > now.ending and process.raised is None and process.code in (-15, -9)


@cache
def _list_echo_patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(
        message.regex for _, message in list_output_patterns(PatternSource.DEATH) if message.role is PatternRole.ECHO
    )
