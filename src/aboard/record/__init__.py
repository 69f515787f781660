"""The run directory: written by the conductor, read by logs, status and why. Data that can't be written is counted."""

from aboard.record.run_directory import ConductorLock, RunDirectory
from aboard.record.run_record import Record
from aboard.record.runs import Runs

__all__ = ["ConductorLock", "Record", "RunDirectory", "Runs"]
