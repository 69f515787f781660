"""The stories of errors: what ends a command, rather than what a rule finds."""

from aboard.core.rule import Subject
from aboard.verdicts.errors.checkpoint import CHECKPOINTS
from aboard.verdicts.errors.commands import COMMANDS
from aboard.verdicts.errors.data import PREPARED
from aboard.verdicts.errors.files import FILES
from aboard.verdicts.errors.model import MODEL
from aboard.verdicts.errors.runs import RUNS
from aboard.verdicts.errors.sandbox import SANDBOX
from aboard.verdicts.errors.spread import SPREAD
from aboard.verdicts.errors.train import TRAINED

ERRORS: tuple[Subject, ...] = (TRAINED, MODEL, CHECKPOINTS, SPREAD, PREPARED, FILES, COMMANDS, RUNS, SANDBOX)
