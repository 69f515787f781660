"""All runs of this user: finds them by name, and prunes them by limits."""

import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Self

from aboard.agent.private_folders import make_private_folder
from aboard.core.text.input_text import find_nearest, suggest_fix
from aboard.diagnoses import AboardError, InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import run_records
from aboard.lazy_dataclass import dataclass
from aboard.record.run_directory import PRIVATE_FILE, RunDirectory

KEEP_RUNS = 100
KEEP_BYTES = 32 * 2**30
RUN_ID = re.compile(r"[0-9]{8}-[0-9]{4}-[a-z]+-[a-z]+")
_GONE = ".gone-"
_NAMES_TRIED = 20
# Named in an error; `aboard status` lists all.
_NAMES_SHOWN = 5


@dataclass(frozen=True)
class Runs:
    """The directory that holds the run directories."""

    base: Path

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        return cls(find_state_directory(environ) / "runs")

    def create(self, now: datetime, random: Random) -> RunDirectory:
        """Creates a run directory with an unused name."""
        try:
            make_private_folder(self.base)
            for _ in range(_NAMES_TRIED):
                run = self.open_run(make_run_id(now, random))
                try:
                    run.make()
                except FileExistsError:
                    continue
                return run
        except OSError as error:
            raise _build_unwritable_error(self.base, error) from None
        seen = f"{_NAMES_TRIED} new run names were tried, but all of them already exist under {self.base}"
        raise AboardError(run_records.RUN_DIRECTORY, seen, "wait")

    def open_or_create(self, run: str) -> RunDirectory:
        """The directory of a run that was named elsewhere, such as by the machine that submitted it."""
        directory = self.open_run(run)
        try:
            make_private_folder(self.base)
            with suppress(FileExistsError):
                directory.make()
        except OSError as error:
            raise _build_unwritable_error(self.base, error) from None
        return directory

    def open_run(self, run: str) -> RunDirectory:
        return RunDirectory(self.base / run)

    def all(self) -> list[RunDirectory]:
        """All runs, the newest first."""
        try:
            names = [entry.name for entry in os.scandir(self.base) if entry.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            seen = f"{self.base} can't be read: {error.strerror}"
            raise AboardError(run_records.RUN_DIRECTORY, seen, "look", folder=self.base) from None
        runs = [self.open_run(name) for name in names if not name.startswith(".")]
        # By the minute in the id, then by creation time: a copied directory keeps its position.
        return sorted(runs, key=lambda run: (run.id[:13], run.began), reverse=True)

    def latest(self) -> RunDirectory:
        """The newest run; the error without any run says how to start one."""
        runs = self.all()
        if not runs:
            raise AboardError(run_records.RUN_NONE, f"there is no run yet under {self.base}", "launch")
        return runs[0]

    def find(self, name: str | None, what: str = "run") -> RunDirectory:
        """The run with this id, or whose id or trailing words start with it; None means the latest.

        `what` is what the name could have been.
        """
        if name is None:
            return self.latest()
        known = {run.id: run for run in self.all()}
        if name in known:
            return known[name]
        near = [run for run in known.values() if name and (run.id.startswith(name) or run.id[14:].startswith(name))]
        if len(near) == 1:
            return near[0]
        if near:
            seen = f"'{escape_text(name)}' matches {len(near)} runs: {', '.join(run.id for run in near[:5])}"
            fix = run_records.RUN_NAME.fix("longer")
        else:
            seen = f"there is no {what} '{escape_text(name)}'"
            names = list(known) if find_nearest(name, known) else list(known)[:_NAMES_SHOWN]
            fix = suggest_fix(run_records.RUN_NAME, name, names) if known else run_records.RUN_NAME.fix("first")
        raise InputError(run_records.RUN_NAME, [Problem(where="run", seen=seen, fix=fix)])

    @property
    def last_question(self) -> float:
        """When `aboard why` last explained a run; 0 if it never did."""
        with suppress(OSError):
            return self._question.stat().st_mtime
        return 0.0

    def note_question(self) -> None:
        """Notes that a run is being explained; on a full or read-only disk this is left out."""
        with suppress(OSError):
            self._question.touch(mode=PRIVATE_FILE)

    @property
    def _question(self) -> Path:
        return self.base / ".asked"

    def remove(self, run: RunDirectory) -> None:
        """Removes a run that never started."""
        _remove_run(run.path)

    def prune(self, *, runs: int = KEEP_RUNS, size: int = KEEP_BYTES) -> list[str]:
        """Removes the oldest runs beyond either limit and returns their ids; never a live run or the newest."""
        count = 0
        total = 0
        removed = []
        for run in self.all():
            run_size = _measure_folder(run.path)
            if count and not run.live and (count >= runs or total + run_size > size):
                _remove_run(run.path)
                removed.append(run.id)
            else:
                count += 1
                total += run_size
        # Finishes an interrupted prune.
        for path in self.base.glob(f"{_GONE}*"):
            shutil.rmtree(path, ignore_errors=True)
        return removed


def find_state_directory(environ: Mapping[str, str]) -> Path:
    """`$XDG_STATE_HOME/aboard`; a relative path is ignored, as the XDG specification requires."""
    state = environ.get("XDG_STATE_HOME", "")
    home = Path(environ.get("HOME") or Path.home())
    return (Path(state) if state.startswith("/") else home / ".local/state") / "aboard"


def _measure_folder(path: Path) -> int:
    total = 0
    for folder, _folders, files in os.walk(path):
        for name in files:
            try:
                total += os.lstat(f"{folder}/{name}").st_size
            except OSError:  # removed meanwhile
                continue
    return total


def _remove_run(path: Path) -> None:
    """Renames the run before deletion, so that a half-deleted one is never taken for a run."""
    doomed = path.with_name(f"{_GONE}{path.name}")
    try:
        path.rename(doomed)
    except OSError:
        return
    shutil.rmtree(doomed, ignore_errors=True)


def _build_unwritable_error(base: Path, error: OSError) -> AboardError:
    seen = f"no run directory can be created under {base}: {error.strerror}"
    return AboardError(run_records.RUN_DIRECTORY, seen, "elsewhere")


_ADJECTIVES = (
    "able apt awake bold brave brief bright brisk busy calm civil clear clever cool crisp deft eager early exact fair "
    "fast fine firm fleet fond frank free fresh full glad good grand great happy hardy hearty honest jolly keen kind "
    "late light lively loyal lucky merry mild neat nimble noble patient plain prompt proud quick quiet ready robust "
    "sharp smart snug solid sound spry steady still stout strong sunny sure swift tall tidy true trusty vivid warm wise"
)
_ANIMALS = (
    "adder badger beaver bison bream camel carp condor cod crane crow deer dingo dove duck eagle egret eland falcon "
    "ferret finch fox gannet gecko goose grouse gull hare hawk heron horse hound ibis ibex jay kite koala lark lemur "
    "linnet lion lynx magpie marten mole moose newt ocelot oriole otter owl panda perch pike plover puffin puma quail "
    "rabbit raven robin rook salmon seal shrew skua sloth snipe sparrow stoat stork swallow swan tapir tern thrush "
    "tiger toad trout turtle viper vole walrus weasel whale wolf wombat wren yak zebra"
)


def make_run_id(now: datetime, random: Random) -> str:
    """A run id such as `20261115-0507-brave-otter`."""
    return f"{now:%Y%m%d-%H%M}-{random.choice(_ADJECTIVES.split())}-{random.choice(_ANIMALS.split())}"
