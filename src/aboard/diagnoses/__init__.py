"""The failures that any package may raise, one module per family, and the types of findings and errors.

Failures that only the doctor or the trainer finds are declared there; `catalogue` has them all.

A failure is a `Diagnosis`: a declared value with a stable code. Findings and errors are made from one, and the command
that they suggest is one of its templates, filled in. No other text becomes a command: see `fixes`.
"""

from aboard.diagnoses.diagnosis import (
    Cause,
    Confidence,
    Diagnosis,
    Finding,
    Mistake,
    RunFailure,
    Severity,
    sort_by_severity,
)
from aboard.diagnoses.errors import (
    AboardError,
    AgentRequestError,
    InputError,
    Problem,
    ProtocolError,
    SandboxError,
    TrainerError,
    TransportError,
    Unreachable,
)
from aboard.diagnoses.fixes import (
    NO_FIX,
    Advice,
    Fix,
    FixCommand,
    Shell,
    chain_commands,
    format_shell,
    join_fixes,
    join_lines,
)

__all__ = [
    "NO_FIX", "AboardError", "Advice", "AgentRequestError", "Cause", "Confidence", "Diagnosis", "Finding", "Fix",
    "FixCommand", "InputError", "Mistake", "Problem", "ProtocolError", "RunFailure", "SandboxError", "Severity",
    "Shell", "TrainerError", "TransportError", "Unreachable", "chain_commands", "format_shell", "join_fixes",
    "join_lines", "sort_by_severity",
]  # fmt: skip
