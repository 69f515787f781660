"""A non-finite loss: the run continues and learns nothing."""

import re
from collections.abc import Iterator

from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import RuleResult
from aboard.diagnoses import Confidence
from aboard.diagnoses.untrusted import escape_text
from aboard.doctor.loss import diagnoses as loss

_NO_NUMBER = re.compile(
    r"\b(train_|eval_|training_)?loss\b[^0-9a-zA-Z]{1,6}(tensor\()?[-+]?(nan|inf(inity)?)\b", re.IGNORECASE
)
_LINES = 2


def is_suspicious_output(data: bytes) -> bool:
    """Whether a chunk of output may contain a non-finite loss; a quick filter."""
    low = data.lower()
    return (
        b"loss" in low
        and (b"nan" in low or b"inf" in low)
        and _NO_NUMBER.search(low.decode("utf-8", "replace")) is not None
    )


def find_nonfinite_loss(evidence: Evidence) -> Iterator[RuleResult]:
    """A rank printed a non-finite loss more than once."""
    for rank, lines in evidence.last_lines.items():
        found = [line for line in lines if line.match(_NO_NUMBER)]
        if len(found) >= _LINES:
            node = evidence.view(rank).node
            yield loss.NO_NUMBER.finding(
                nodes=(node,),
                ranks=(rank,),
                seen=f'rank {rank} on {node} prints "{escape_text(found[-1].raw().strip())}"',
                fix=loss.NO_NUMBER.fix(run=evidence.plan.run),
            ).as_cause(Confidence.STRONG)
            return


RULES = (find_nonfinite_loss,)
