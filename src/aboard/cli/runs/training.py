"""Prepares a training, reporting each step, and launches it."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from aboard.checks.train.training_rules import RankMemoryNeeds, TrainingPreflight, judge_training
from aboard.cli.runs.prepare_training import PreparationReporter
from aboard.cli.runs.start_launch import ResolvedLaunch, dial_and_launch
from aboard.config.slurm_allocation import read_allocation
from aboard.config.this_machine import get_cache_folder
from aboard.config.training.train_settings import TrainSettings
from aboard.core.cluster.cluster import Cluster
from aboard.core.exit_codes import EXIT_BLOCKED
from aboard.core.plan.launch_request import resolve_request
from aboard.core.plan.plan import Plan
from aboard.core.plan.training_settings import Training
from aboard.core.run.lease import Lease
from aboard.diagnoses import AboardError, Finding, Shell, format_shell
from aboard.flows.train.recorded_checkpoints import read_recorded_training
from aboard.flows.train.share_checkpoint import ShareProgress, ShareRequest, share_checkpoint
from aboard.flows.train.trainer_process import MEMORY_MODULE, TrainerProcess, estimate_memory
from aboard.flows.train.training_payload import TrainingPayload, build_request
from aboard.flows.train.upload_inputs import upload_inputs
from aboard.lazy_dataclass import dataclass
from aboard.record.runs import Runs
from aboard.transport.node_dialer import NodeDialer
from aboard.ui.findings_view import FindingsView


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The command line options of `aboard train`."""

    env: Mapping[str, str]
    ranks: int | None
    check: str
    lease: Lease
    command: Shell
    notes: tuple[str, ...] = ()
    dry: bool = False
    detach: bool = False
    run: str | None = None
    resubmits: int = 0


def prepare_and_train(config: TrainSettings, cluster: Cluster, options: TrainOptions) -> int:
    """Prepares the inputs, checks the nodes, copies files, and trains; returns the run's exit code."""
    console = Console(highlight=False)
    if early := find_early_findings(config, cluster, options.ranks):
        console.print(FindingsView(early, in_full=False), crop=False)
        return EXIT_BLOCKED
    with TrainerProcess(MEMORY_MODULE) as trainer:
        if not options.detach:
            # The subprocess imports torch while the data is prepared; this process never does.
            trainer.begin()
        return _train_prepared(cluster, options, trainer, PreparationReporter(console, config))


def _train_prepared(
    cluster: Cluster, options: TrainOptions, trainer: TrainerProcess, reporter: PreparationReporter
) -> int:
    cache = get_cache_folder(os.environ)
    inputs = reporter.provide(cache)
    if inputs is None:
        return EXIT_BLOCKED

    async def estimate(
        training: Training,
        ranks: Mapping[str, int],
        room: int | None,
        gpus: bool,
    ) -> RankMemoryNeeds | None:
        try:
            found = await estimate_memory(trainer, training, inputs.model, ranks, room, gpus=gpus)
        except AboardError as error:
            if error.code.startswith("adapter-"):
                raise
            # No estimate is no reason to stop: a head without torch can train on nodes that have it.
            reporter.say("memory", f"not estimated: {error.seen}")
            return None
        reporter.say("memory", found.says.visible(400))
        return found

    async def upload_files(plan: Plan, dialer: NodeDialer, folders: Sequence[Path]) -> None:
        with reporter.sending() as on_progress:
            upload = await upload_inputs(plan, dialer, folders, cache=cache, on_progress=on_progress)
        reporter.report_upload(upload)

    async def share_parts(plan: Plan, dialer: NodeDialer, training: Training) -> None:
        runs = Runs.of(os.environ).all()
        job = await asyncio.to_thread(read_allocation, os.environ)
        recorded = await asyncio.to_thread(read_recorded_training, runs, training.output_dir, job)
        parts_cache = cache.with_name("checkpoints")
        request = ShareRequest(plan=plan, training=training, recorded=recorded, cache=parts_cache)
        progress = ShareProgress(receiving=reporter.receiving, sending=reporter.sending)
        reporter.report_shared(await share_checkpoint(request, dialer, progress))

    payload = TrainingPayload(
        inputs=inputs,
        command=options.command,
        upload=upload_files,
        share_checkpoint=share_parts,
        estimate_memory=estimate,
        environ=os.environ,
        typed=options.env,
        here=Path.cwd(),
        on_settled=reporter.report_steps,
    )
    launch_request = replace(build_request(options.env), ranks=options.ranks)
    cluster, launch_request = resolve_request(cluster, launch_request, None)
    arguments = ResolvedLaunch(
        cluster=cluster,
        request=launch_request,
        check=options.check,
        lease=options.lease,
        command=build_resume_command(options.command, inputs.settings),
        notes=options.notes,
        cargo=payload,
        subjects=(payload.subject,),
        run=options.run,
        resubmits=options.resubmits,
    )
    if options.dry:
        from aboard.cli.runs.dry_run import print_dry_run  # noqa: PLC0415 - for those who ask

        return print_dry_run(arguments, other=None, as_json=False)
    if options.detach:
        from aboard.cli.runs.attached_and_detached import run_detached  # noqa: PLC0415 - for those who ask

        return run_detached(arguments)
    return dial_and_launch(arguments)


def build_resume_command(command: Shell, config: TrainSettings) -> Shell:
    """The command that resumes from the last checkpoint; overrides `train.resume` if the file sets it otherwise."""
    if config.settings["resume"] == "auto":
        return command
    return format_shell("{command:shell} --set train.resume=auto", command=command)


def find_early_findings(config: TrainSettings, cluster: Cluster, ranks: int | None) -> list[Finding]:
    """The findings that need no probe of the nodes, if the config gives the slots of each."""
    counts = {
        node.name: ranks or (len(node.picked) if node.picked is not None else node.slots)
        for node in cluster
        if node.slots != 0
    }
    known = {name: count for name, count in counts.items() if count is not None}
    if len(known) < len(counts):
        return []
    training = config.training(model=config.model, tokenizer=config.tokenizer, data=(), validation=(), bf16=False)
    return judge_training(TrainingPreflight(training=training, ranks=known, given=config.given))
