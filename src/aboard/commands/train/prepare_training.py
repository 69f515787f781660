"""Prepares a training run on the head, and adds it to a launch as its payload."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Protocol

from aboard.commands.sync.download import OnDownload
from aboard.commands.sync.sync_directory import SyncDirectory
from aboard.commands.sync.sync_files import SyncResult, UploadProgress, sync_files
from aboard.commands.sync.trees.sync_sources import refuse_system_path
from aboard.commands.train.checkpoints.recorded_checkpoints import RecordedTraining, read_recorded_training
from aboard.commands.train.checkpoints.share_checkpoint import (
    ShareProgress,
    ShareRequest,
    ShareResult,
    share_checkpoint,
)
from aboard.commands.train.fetch_model import CODE, CONFIG, FILES, WEIGHTS, fetch_model, read_model_facts
from aboard.commands.train.input_directory import build_sync_directory
from aboard.commands.train.prepare_data import TokenizeProgress, TrainingDatasets, prepare_training_data
from aboard.commands.train.trainer_process import TrainerProcess, estimate_memory
from aboard.commands.train.training_payload import TrainingInputs, TrainingPayload
from aboard.config.input_files import FoundFile, read_text
from aboard.config.slurm_allocation import read_allocation
from aboard.config.this_machine import locate_on_nodes
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.plan.launch_request import resolve_request
from aboard.core.plan.plan import Plan
from aboard.core.plan.training_settings import Training
from aboard.diagnoses import AboardError, Finding, Shell, format_shell
from aboard.diagnoses.usage import configuration
from aboard.engine.request.launch_spec import LaunchSpec
from aboard.record.runs import Runs
from aboard.trainer.checks.subject import ESSENTIAL, leave_out_cuda
from aboard.trainer.checks.training_rules import RankMemoryNeeds, TrainingPreflight, judge_training
from aboard.trainer.settings.train_settings import TrainSettings
from aboard.transport.node_dialer import NodeDialer

_HASHES = "fingerprints.json"


class TrainingObserver(Protocol):
    """Receives what a training run does before its ranks start, for display."""

    def say(self, label: str, text: str) -> None: ...

    def report_steps(self, preflight: TrainingPreflight, findings: Sequence[Finding]) -> None: ...

    def report_upload(self, upload: SyncResult | None) -> None: ...

    def report_shared(self, shared: ShareResult | None) -> None: ...

    def sending(self) -> AbstractContextManager[Callable[[UploadProgress], None]]: ...

    def receiving(self) -> AbstractContextManager[OnDownload]: ...


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


def prepare_inputs(
    config: TrainSettings,
    cache: Path,
    *,
    command: Shell,
    on_step: Callable[[str, str], None],
    on_tokenized: Callable[[TokenizeProgress], None],
) -> tuple[TrainingInputs | None, TrainingDatasets]:
    """Fetches the model and prepares the data; there are no inputs if the data check failed."""
    on_step("model", config.model)
    trusted = config.settings["trust_remote_code"]
    model = fetch_model(config.model, from_scratch=config.settings["from_scratch"], trust_remote_code=trusted)
    same = config.tokenizer == config.model
    tokenizer = model if same else _fetch_tokenizer(config.tokenizer, trust_remote_code=trusted)
    facts = read_model_facts(model)
    template = config.data.template
    text = None if template is None else read_text(FoundFile(template), fix=configuration.FILE.fix("template"))
    on_step("data", "reading the files and the tokenizer")
    found = prepare_training_data(
        config, str(tokenizer), cache, template=text, command=command, on_progress=on_tokenized
    )
    if found.is_blocked:
        return None, found
    inputs = TrainingInputs(
        settings=config,
        model=model,
        tokenizer=tokenizer,
        facts=facts,
        data=found.data,
        identity=found.identity,
        validation=found.validation,
        vocabulary=found.vocabulary,
    )
    return inputs, found


def _fetch_tokenizer(name: str, *, trust_remote_code: bool) -> Path:
    """The directory itself; for a name on the hub, the small files of that model."""
    if Path(name).is_dir():
        return Path(name)
    return fetch_model(name, from_scratch=True, trust_remote_code=trust_remote_code)


def add_training(
    spec: LaunchSpec,
    inputs: TrainingInputs,
    trainer: TrainerProcess,
    observer: TrainingObserver,
    *,
    cache: Path,
    typed_env: Mapping[str, str],
) -> LaunchSpec:
    """The launch with the training as payload and its subject among those to check, unless none is."""
    estimates: dict[tuple[object, ...], RankMemoryNeeds] = {}

    async def estimate(
        training: Training,
        ranks: Mapping[str, int],
        room: int | None,
        gpus: bool,
    ) -> RankMemoryNeeds | None:
        # A spare in a node's place needs no other estimate, which takes an import of torch.
        key = (training.bf16, *ranks.values(), room, gpus)
        if key in estimates:
            return estimates[key]
        try:
            found = estimates[key] = await estimate_memory(trainer, training, inputs.model, ranks, room, gpus=gpus)
        except AboardError as error:
            if error.code.startswith("adapter-"):
                raise
            # No estimate is no reason to stop: a head without torch can train on nodes that have it.
            observer.say("memory per rank", f"not estimated: {error.seen}")
            return None
        observer.say("memory per rank", found.says.visible(400))
        return found

    async def upload_files(
        nodes: Sequence[Node], dialer: NodeDialer, folders: Sequence[Path], *, quiet: bool = False
    ) -> None:
        with nullcontext(lambda _progress: None) if quiet else observer.sending() as on_progress:
            upload = await _upload_inputs(nodes, dialer, folders, cache=cache, on_progress=on_progress)
        if not quiet:
            observer.report_upload(upload)

    async def read_recorded(training: Training) -> RecordedTraining:
        runs = Runs.of(os.environ).all()
        job = await asyncio.to_thread(read_allocation, os.environ)
        return await asyncio.to_thread(read_recorded_training, runs, training.output_dir, job)

    async def share_parts(plan: Plan, dialer: NodeDialer, training: Training, recorded: RecordedTraining) -> None:
        parts_cache = cache.with_name("checkpoints")
        request = ShareRequest(plan=plan, training=training, recorded=recorded, cache=parts_cache)
        progress = ShareProgress(receiving=observer.receiving, sending=observer.sending)
        observer.report_shared(await share_checkpoint(request, dialer, progress))

    payload = TrainingPayload(
        inputs=inputs,
        command=spec.command,
        upload=upload_files,
        read_recorded=read_recorded,
        share_checkpoint=share_parts,
        estimate_memory=estimate,
        environ=os.environ,
        typed=typed_env,
        here=Path.cwd(),
        standbys=spec.recovery.has_standbys,
        on_settled=observer.report_steps,
    )
    cluster, request = resolve_request(spec.cluster, spec.request, None, shell=os.environ)
    return replace(
        spec,
        cluster=cluster,
        request=request,
        command=build_resume_command(spec.command, inputs.settings),
        subjects=(*map(leave_out_cuda, spec.subjects), payload.subject) if spec.subjects else (),
        essential=ESSENTIAL,
        payload=payload,
    )


def build_resume_command(command: Shell, config: TrainSettings) -> Shell:
    """The command that resumes from the last checkpoint; overrides `train.resume` if the file sets it otherwise."""
    if config.settings["resume"] == "auto":
        return command
    return format_shell("{command:shell} --set train.resume=auto", command=command)


async def _upload_inputs(
    nodes: Sequence[Node],
    dialer: NodeDialer,
    folders: Sequence[Path],
    *,
    cache: Path,
    on_progress: Callable[[UploadProgress], None],
) -> SyncResult | None:
    """Uploads to every node but this machine; None if there is no other."""
    nodes = [node for node in nodes if node.transport is not TransportKind.LOCAL]
    if not nodes:
        return None
    directories = [await asyncio.to_thread(_build_upload, folder, cache) for folder in folders]
    return await sync_files(nodes, directories, dialer, on_progress=on_progress)


def _build_upload(folder: Path, cache: Path) -> SyncDirectory:
    refuse_system_path(folder)
    directory = replace(build_sync_directory(folder, hashes=cache / _HASHES, to=locate_on_nodes(folder)), peers=True)
    if not (folder / CONFIG).is_file():
        return directory
    # A model's directory may contain the same weights in other formats, and unrelated files.
    needed_files = tuple(
        file for file in directory.files if any(fnmatch(file.name, form) for form in (*FILES, WEIGHTS, CODE))
    )
    return replace(directory, files=needed_files)
