"""A loss that is no number any more: the run goes on, and learns nothing."""

import re
from collections.abc import Iterator

from aboard.core.evidence import Evidence
from aboard.core.verdict import Cause, Said, Sure
from aboard.core.words import visible
from aboard.diagnoses import loss

_NO_NUMBER = re.compile(
    r"\b(train_|eval_|training_)?loss\b[^0-9a-zA-Z]{1,6}(tensor\()?[-+]?(nan|inf(inity)?)\b", re.IGNORECASE
)
_LINES = 2


def suspicious(data: bytes) -> bool:
    """Whether a piece of output is worth a look; most are not, and are passed by quickly."""
    low = data.lower()
    return (
        b"loss" in low
        and (b"nan" in low or b"inf" in low)
        and _NO_NUMBER.search(low.decode("utf-8", "replace")) is not None
    )


def no_number(evidence: Evidence) -> Iterator[Said]:
    """Said by a rank itself, in its own words, more than once."""
    for rank, lines in evidence.said.items():
        found = [line for line in lines if line.match(_NO_NUMBER)]
        if len(found) >= _LINES:
            node = evidence.view(rank).node
            yield Cause(
                finding=loss.NO_NUMBER.finding(
                    nodes=(node,),
                    ranks=(rank,),
                    seen=f'rank {rank} on {node} says "{visible(found[-1].raw().strip())}"',
                    fix=loss.NO_NUMBER.fix(run=evidence.plan.run),
                ),
                sure=Sure.STRONG,
            )
            return


RULES = (no_number,)
