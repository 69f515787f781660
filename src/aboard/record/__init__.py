"""The run directory: written by the conductor, read by logs, status and why. What can't be kept is counted."""

from aboard.record.places import Claim, RunDirectory
from aboard.record.record import Record
from aboard.record.runs import Runs

__all__ = ["Claim", "Record", "RunDirectory", "Runs"]
