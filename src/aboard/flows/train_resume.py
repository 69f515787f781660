"""What a training would resume from, judged before ranks start: its settings, and whether anything is left of it."""

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from aboard.checks.train.checkpoints import Saved, checkpoints_probe, newest
from aboard.core.facts import Facts
from aboard.core.probe import Probe
from aboard.core.retyped import retyped
from aboard.core.training import Training
from aboard.diagnoses import NO_FIX, Finding, Shell, checkpoint, join_fixes, shell
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy import dataclass
from aboard.train.differences import Difference, Present, differences
from aboard.train.marker import Marker, NoMarker, read_head


@dataclass(frozen=True, kw_only=True)
class Resume:
    """A checkpoint that ranks would load: where it is, and what its manifest says."""

    node: str
    folder: Untrusted
    marker: Marker


@dataclass(frozen=True, kw_only=True)
class Typed:
    """What was typed, and the output directory that it has on this machine."""

    command: Shell
    output_dir: str


class TrainingFinished(Exception):
    """There is nothing left to train: the checkpoint is at the last step, or beyond it. `further` trains on."""

    def __init__(self, resume: Resume, *, steps: int, further: Shell) -> None:
        super().__init__(f"step {resume.marker.step} of {steps} is saved in {resume.folder.visible(500)}")
        self.resume = resume
        self.steps = steps
        self.further = further


def resume_probe(training: Training) -> Probe[Saved]:
    """Asks a node for the checkpoints of this training, or for the one that `resume` names."""
    return checkpoints_probe(training.output_dir if training.resume == "auto" else training.resume)


def resume_of(facts: Facts, training: Training) -> Resume | None:
    """The newest checkpoint of all nodes; None where there is none, or where nobody asked."""
    if training.resume == "none":
        return None
    found = newest(facts.of(resume_probe(training)))
    if found is None:
        return None
    node, folder, content = found
    try:
        return Resume(node=node, folder=folder, marker=read_head(content))
    except NoMarker:
        # Written by another version: the ranks say so, with everything that they know.
        return None


def judge_resume(
    resume: Resume, training: Training, *, world: int, data: str, sequences: int, typed: Typed
) -> Iterator[Finding]:
    """What can't be changed on the way; raises TrainingFinished where nothing is left."""
    marker = resume.marker
    now = Present(
        training=asdict(training),
        step_size=training.step_size(world),
        world=world,
        sharding=marker.sharding,
        versions={},
        data=data,
        # Of another model, the ranks know.
        config=None,
    )
    refused = [each for each in differences(marker, now) if each.refused]
    if refused:
        yield _differs(resume, refused, typed)
        return
    total = training.total_sequences(world, sequences)
    if marker.progress["index"] >= total:
        steps = -(-total // training.step_size(world))
        raise TrainingFinished(resume, steps=steps, further=_retyped(typed.command, _further(training)))


def _differs(resume: Resume, refused: list[Difference], typed: Typed) -> Finding:
    keeps = [each.keep for each in refused if each.keep]
    as_it_was = NO_FIX
    if len(keeps) == len(refused):
        as_it_was = checkpoint.DIFFERS.fix("typed", typed=_retyped(typed.command, *keeps))
    elsewhere = _retyped(typed.command, f"train.output_dir={_free(typed.output_dir)}")
    return checkpoint.DIFFERS.finding(
        nodes=(resume.node,),
        seen=f"{resume.folder.visible(500)} can't be continued with these settings: {'; '.join(map(str, refused))}",
        why=" ".join(f"{each.refused[:1].upper()}{each.refused[1:]}." for each in refused if each.refused),
        fix=join_fixes(as_it_was, checkpoint.DIFFERS.fix("anew", typed=elsewhere)),
    )


def _retyped(command: Shell, *settings: str) -> Shell:
    """The command with these settings, in place of those that it has for the same keys."""
    dropped = {setting.partition("=")[0] for setting in settings}
    if "train.global_batch_size" in dropped:
        dropped.add("train.gradient_accumulation_steps")
    words: list[str] = []
    for word in shlex.split(command):
        if words and words[-1] == "--set" and word.partition("=")[0] in dropped:
            words.pop()
        else:
            words.append(word)
    return shell("{typed:shell} {settings:--set}", typed=retyped(words), settings=settings)


def _free(folder: str) -> str:
    """A folder beside it that isn't there yet."""
    number = 2
    while Path(f"{folder}-{number}").exists():
        number += 1
    return f"{folder}-{number}"


def _further(training: Training) -> str:
    if training.max_steps is not None:
        return f"train.max_steps={2 * training.max_steps}"
    return f"train.num_train_epochs={training.num_train_epochs + 1:g}"
