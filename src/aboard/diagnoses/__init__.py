"""Every failure that Aboard can name, one module per family, and what a finding or an error is made of.

A failure is a `Diagnosis`: a declared value with a stable code. Findings and errors are made from one, and the command
that they suggest is one of its templates, filled in. No other text becomes a command: see `fixes`.
"""

from aboard.diagnoses.diagnosis import Diagnosis, Finding, Severity, worst_first
from aboard.diagnoses.errors import (
    AboardError,
    AskError,
    InputError,
    Problem,
    ProtocolError,
    SandboxError,
    Unreachable,
    WireError,
)
from aboard.diagnoses.fixes import NO_FIX, Advice, Command, Fix, Shell, chain, join_fixes, join_lines, shell

__all__ = [
    "NO_FIX",
    "AboardError",
    "Advice",
    "AskError",
    "Command",
    "Diagnosis",
    "Finding",
    "Fix",
    "InputError",
    "Problem",
    "ProtocolError",
    "SandboxError",
    "Severity",
    "Shell",
    "Unreachable",
    "WireError",
    "chain",
    "join_fixes",
    "join_lines",
    "shell",
    "worst_first",
]
