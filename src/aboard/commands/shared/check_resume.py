"""Checks, before ranks start, the checkpoint to resume from: its settings, and whether any steps remain."""

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from aboard.core.plan.training_settings import Training
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe
from aboard.core.run.saved_markers import SavedMarker
from aboard.core.text.shell_quoting import quote_typed_words
from aboard.diagnoses import NO_FIX, Finding, Shell, format_shell, join_fixes
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass
from aboard.trainer.checkpoint.best_evaluation import BestEvaluation, get_wanted_best
from aboard.trainer.checkpoint.commit_marker import CommitMarker, MarkerError, RunSettings, parse_marker_head
from aboard.trainer.checkpoint.setting_differences import SettingDifference, find_differences
from aboard.trainer.checks.resumable_checkpoints import (
    CheckpointManifests,
    build_checkpoints_probe,
    find_newest_checkpoint,
)
from aboard.trainer.diagnoses import checkpoint


@dataclass(frozen=True, kw_only=True)
class ResumeCheckpoint:
    """A checkpoint that ranks would load: its location and its manifest."""

    node: str
    folder: Untrusted
    marker: CommitMarker


class TrainingFinished(Exception):
    """Nothing is left to train: the checkpoint is at or past the last step, or evaluations have stopped improving.

    `further` is a command that trains on; `stale` is the number of evaluations that stopped it early.
    """

    def __init__(self, resume: ResumeCheckpoint, *, steps: int, further: Shell, stale: int | None = None) -> None:
        super().__init__(f"step {resume.marker.step} of {steps} is saved in {resume.folder.visible(500)}")
        self.resume = resume
        self.steps = steps
        self.further = further
        self.stale = stale
        # The evaluation whose checkpoint an export takes; None means the newest.
        self.best = get_wanted_best(resume.marker.training, resume.marker.state)


def build_resume_probe(training: Training) -> Probe[CheckpointManifests]:
    """Queries a node for the checkpoints of this training run, or for the one that `resume` names."""
    return build_checkpoints_probe(training.output_dir if training.resume == "auto" else training.resume)


def find_resume(facts: Facts, training: Training, markers: Sequence[SavedMarker]) -> ResumeCheckpoint | None:
    """The newest checkpoint of all nodes, of those with these markers if there are any; None without one to resume."""
    if training.resume == "none":
        return None
    newest_saved = find_newest_checkpoint(facts.of(build_resume_probe(training)), markers)
    if newest_saved is None:
        return None
    node, folder, content = newest_saved
    try:
        return ResumeCheckpoint(node=node, folder=folder, marker=parse_marker_head(content))
    except MarkerError:
        # Written by another version: the ranks report it, with more detail.
        return None


def judge_resume(
    resume: ResumeCheckpoint,
    training: Training,
    *,
    world: int,
    data: str,
    base: str,
    sequences: int,
    command: Shell,
    output_dir: str,
) -> Iterator[Finding]:
    """Finds settings that can't change since the checkpoint; raises TrainingFinished if no steps remain.

    `command` is what the user typed, and `output_dir` its output directory on this machine.
    """
    marker = resume.marker
    now = RunSettings(
        # As in the manifest: JSON has no tuples.
        training=json.loads(json.dumps(asdict(training))),
        step_size=training.step_size(world),
        world=world,
        sharding=marker.sharding,
        versions={},
        data=data,
        # The ranks detect a different model.
        config=None,
        base=base,
    )
    refused = [each for each in find_differences(marker, now) if each.refused]
    if refused:
        yield _build_mismatch(resume, refused, command, output_dir)
        return
    total = training.total_sequences(world, sequences)
    steps = -(-total // training.step_size(world))
    if marker.progress["index"] >= total:
        raise TrainingFinished(resume, steps=steps, further=_rewrite_command(command, _extend_training(training)))
    stale, patience = BestEvaluation.of(marker.state).stale, training.early_stopping_patience
    if patience is not None and stale >= patience:
        further = _rewrite_command(command, f"train.early_stopping_patience={2 * stale}")
        raise TrainingFinished(resume, steps=steps, further=further, stale=stale)


def _build_mismatch(
    resume: ResumeCheckpoint, refused: list[SettingDifference], command: Shell, output_dir: str
) -> Finding:
    keeps = [each.keep for each in refused if each.keep]
    as_it_was = NO_FIX
    if len(keeps) == len(refused):
        as_it_was = checkpoint.DIFFERS.fix("typed", typed=_rewrite_command(command, *keeps))
    elsewhere = _rewrite_command(command, f"train.output_dir={_find_free_folder(output_dir)}")
    return checkpoint.DIFFERS.finding(
        nodes=(resume.node,),
        seen=f"{resume.folder.visible(500)} can't be continued with these settings: {'; '.join(map(str, refused))}",
        why=" ".join(f"{each.refused[:1].upper()}{each.refused[1:]}." for each in refused if each.refused),
        fix=join_fixes(as_it_was, checkpoint.DIFFERS.fix("anew", typed=elsewhere)),
    )


def _rewrite_command(command: Shell, *settings: str) -> Shell:
    """The command with these settings, which replace its own for the same keys."""
    replaced_keys = {setting.partition("=")[0] for setting in settings}
    if "train.global_batch_size" in replaced_keys:
        replaced_keys.add("train.gradient_accumulation_steps")
    arguments: list[str] = []
    for argument in shlex.split(command):
        if arguments and arguments[-1] == "--set" and argument.partition("=")[0] in replaced_keys:
            arguments.pop()
        else:
            arguments.append(argument)
    return format_shell("{typed:shell} {settings:--set}", typed=quote_typed_words(arguments), settings=settings)


def _find_free_folder(folder: str) -> str:
    """A sibling folder that does not exist yet."""
    number = 2
    while Path(f"{folder}-{number}").exists():
        number += 1
    return f"{folder}-{number}"


def _extend_training(training: Training) -> str:
    if training.max_steps is not None:
        return f"train.max_steps={2 * training.max_steps}"
    return f"train.num_train_epochs={training.num_train_epochs + 1:g}"
