"""Shows a training run until its ranks start: a line for each part that is prepared, and a progress bar."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich.console import Console

from aboard.commands.data.plain_report import format_data_lines
from aboard.commands.data.report_view import DataReportView
from aboard.commands.launch.launch_modes import print_dry_run, run_attached, run_detached
from aboard.commands.launch.show_job import print_batch_script, submit_and_follow
from aboard.commands.shared.number_format import format_count
from aboard.commands.shared.printed_output import (
    build_console,
    print_findings,
    print_notes,
    print_report,
    print_warnings,
)
from aboard.commands.sync.download import OnDownload
from aboard.commands.sync.sync_files import SyncResult, UploadProgress
from aboard.commands.train.checkpoints.checkpoint_survey import add_progress
from aboard.commands.train.checkpoints.share_checkpoint import ShareResult
from aboard.commands.train.config_view import PreparationView, describe_data, describe_mix, describe_steps, render_label
from aboard.commands.train.prepare_data import PreparedDataset, TokenizeProgress, TrainingDatasets
from aboard.commands.train.prepare_training import add_training, find_early_findings, prepare_inputs
from aboard.commands.train.trainer_process import MEMORY_MODULE, TrainerProcess
from aboard.commands.train.training_payload import TrainingInputs
from aboard.config.this_machine import get_cache_folder
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.exit_codes import EXIT_BLOCKED
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses import Finding, Severity, Shell
from aboard.diagnoses.untrusted import escape_lines
from aboard.engine.launch_run import leave_out
from aboard.engine.request.launch_spec import LaunchSpec
from aboard.engine.request.typed_words import format_typed_command
from aboard.engine.slurm.submit_job import check_submission
from aboard.trainer.checks.training_rules import TrainingPreflight
from aboard.trainer.settings.train_settings import TrainSettings


def prepare_and_train(
    config: TrainSettings, spec: LaunchSpec, *, typed_env: Mapping[str, str], dry: bool, detach: bool
) -> int:
    """Prepares the inputs, checks the nodes, copies files, and trains; returns the run's exit code."""
    reporter = PreparationReporter(build_console(), config, spec.command)
    if reporter.show_early_findings(leave_out(spec.cluster, spec.recovery.spares), spec.request.ranks):
        return EXIT_BLOCKED
    with TrainerProcess(MEMORY_MODULE) as trainer:
        if not detach:
            # The subprocess imports torch while the data is prepared; this process never does.
            trainer.begin()
        inputs = reporter.prepare()
        if inputs is None:
            return EXIT_BLOCKED
        cache = get_cache_folder(os.environ)
        training_spec = add_training(spec, inputs, trainer, reporter, cache=cache, typed_env=typed_env)
        if dry:
            return print_dry_run(training_spec)
        if detach:
            return run_detached(training_spec)
        return asyncio.run(run_attached(training_spec))


def prepare_and_submit(
    config: TrainSettings,
    slurm: SlurmSettings,
    argv: Sequence[str],
    *,
    ranks: int | None,
    spares: int,
    dry: bool,
    detach: bool,
) -> int:
    """A mistake in the settings or the data is found before the job waits in a queue.

    The login node often is the only machine with access to the Internet. Where homes are shared, the job finds what
    was prepared; otherwise its first node prepares it again.
    """
    reporter = PreparationReporter(build_console(), config, format_typed_command(argv))
    nodes = tuple(Node(name=f"node{number + 1}", slots=slurm.gpus_per_node) for number in range(slurm.nodes - spares))
    if reporter.show_early_findings(Cluster(nodes=nodes), ranks):
        return EXIT_BLOCKED
    if not dry:
        # Before anything takes time.
        print_notes([asyncio.run(check_submission(slurm, argv))])
    if reporter.prepare() is None:
        return EXIT_BLOCKED
    return print_batch_script(slurm, argv) if dry else submit_and_follow(slurm, argv, detach=detach)


class PreparationReporter:
    """Reports with a transient progress bar on a terminal, and in plain lines to a pipe."""

    def __init__(self, console: Console, config: TrainSettings, command: Shell) -> None:
        self._console = console
        self._config = config
        self._command = command
        self._parts: tuple[PreparedDataset, ...] = ()
        self._reported: tuple[object, ...] = ()

    def show_early_findings(self, cluster: Cluster, ranks: int | None) -> bool:
        """Whether there are any, after printing them."""
        early = find_early_findings(self._config, cluster, ranks)
        print_findings(self._console, early)
        return bool(early)

    def prepare(self) -> TrainingInputs | None:
        """Fetches the model and prepares the data; None, after printing the report, if the data check failed."""
        config = self._config
        with self._making() as making:

            def on_tokenized(progress: TokenizeProgress) -> None:
                making.update(
                    "data   tokenizing",
                    progress.bytes,
                    progress.of_bytes,
                    f", {format_count(progress.tokens, 'token')}",
                )

            inputs, found = prepare_inputs(
                config,
                get_cache_folder(os.environ),
                command=self._command,
                on_step=lambda label, text: making.update(f"{label:6} {text}"),
                on_tokenized=on_tokenized,
            )
        self.say("model", f"{config.model}{', new weights' if config.settings['from_scratch'] else ''}")
        if inputs is None:
            self._print_failed_check(found)
        else:
            self._report_data(found)
        return inputs

    def report_steps(self, preflight: TrainingPreflight, findings: Sequence[Finding]) -> None:
        """Reports the size of a step, and the warnings unless a finding stops the run."""
        nodes = len(preflight.nodes)
        training, ranks = preflight.training, preflight.world
        sequences = sum(part.sequences for part in self._parts)
        steps = describe_steps(training, ranks=ranks, nodes=nodes, sequences=sequences)
        before, self._reported = self._reported, (steps, *findings)
        if self._reported == before:
            # The same with a spare in a node's place.
            return
        self.say("train", steps)
        mix = [(part.name, part.share, part.sequences) for part in self._parts if part.share is not None]
        if mix:
            self.say("mix", describe_mix(training, ranks=ranks, parts=mix))
        print_warnings(self._console, findings)

    @contextmanager
    def sending(self) -> Iterator[Callable[[UploadProgress], None]]:
        """A progress bar over all nodes while files are copied to them."""
        far: dict[str, UploadProgress] = {}
        with self._making() as making:
            making.update("files  comparing with the nodes")

            def on_progress(progress: UploadProgress) -> None:
                far[progress.node] = progress
                sent = [each for each in far.values() if each.phase in ("sending", "done")]
                done, total = sum(each.done for each in sent), sum(each.total for each in sent)
                making.update("files  sending", done, total, f" to {format_count(len(far), 'node')}")

            yield on_progress

    @contextmanager
    def receiving(self) -> Iterator[OnDownload]:
        """A progress bar over all nodes while parts of a checkpoint are copied from them."""
        with self._making() as making:
            making.update("checkpoint  asking the nodes")
            yield add_progress(lambda done, total: making.update("checkpoint  fetching its parts", done, total))

    def report_shared(self, shared: ShareResult | None) -> None:
        """Reports the parts that nodes got, and why a newer checkpoint is not used."""
        if shared is None:
            return
        for note in shared.notes:
            self.say("checkpoint", note)
        if shared.notes:
            self.say("checkpoint", f"{shared.name} is what the run resumes from")
        if shared.sent + shared.passed:
            nodes = format_count(len(shared.nodes), "node")
            passed = f", {format_size(shared.passed)} of it by other nodes" if shared.passed else ""
            self.say(
                "checkpoint", f"{format_size(shared.sent + shared.passed)} of {shared.name} sent to {nodes}{passed}"
            )

    def report_upload(self, upload: SyncResult | None) -> None:
        if upload is not None and upload.sent + upload.from_peers:
            passed_on = f", {format_size(upload.from_peers)} of it by other nodes" if upload.from_peers else ""
            self.say(
                "files",
                f"{format_size(upload.sent + upload.from_peers)} of missing files sent to"
                f" {format_count(len(upload.nodes), 'node')}{passed_on}",
            )
        if upload is not None:
            print_findings(self._console, upload.findings)

    def say(self, label: str, text: str) -> None:
        text = escape_lines(text)
        if self._console.is_terminal:
            self._console.print(render_label(label, text, self._console.width), soft_wrap=True)
        else:
            sys.stdout.write(f"{label} {text}\n")
            sys.stdout.flush()

    def _report_data(self, datasets: TrainingDatasets) -> None:
        for part in datasets.data:
            self.say("data", f"{part.name}: {_format_part(part)}" if part.share is not None else _format_part(part))
        if datasets.validation is not None:
            self.say("validation set", _format_part(datasets.validation))
        self._parts = datasets.data
        print_findings(self._console, [each for each in datasets.report.findings if each.severity > Severity.INFO])

    def _print_failed_check(self, datasets: TrainingDatasets) -> None:
        view = DataReportView(datasets.report, stats=False, verbose=False)
        print_report(self._console, view, format_data_lines(datasets.report, stats=False))

    def _making(self) -> AbstractContextManager[PreparationView]:
        making = PreparationView(self._console)
        return making if self._console.is_terminal else nullcontext(making)


def _format_part(dataset: PreparedDataset) -> str:
    text = describe_data(
        documents=dataset.documents,
        tokens=dataset.tokens,
        supervised=dataset.supervised,
        sequences=dataset.sequences,
        length=dataset.length,
        full=dataset.full,
    )
    return f"{text}{' (cached)' if dataset.cached else ''}"
