"""Prepares model and data on the head, with a line for each part and a progress bar."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from aboard.checks.train.training_rules import TrainingPreflight
from aboard.config.input_files import FoundFile, read_text
from aboard.config.training.train_settings import TrainSettings
from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.untrusted import escape_lines
from aboard.diagnoses.usage import configuration
from aboard.flows.sync.download import OnDownload
from aboard.flows.sync.sync_files import SyncResult, UploadProgress
from aboard.flows.train.checkpoint_survey import add_progress
from aboard.flows.train.fetch_model import fetch_model, read_model_facts
from aboard.flows.train.prepare_data import PreparedDataset, TokenizeProgress, TrainingDatasets, prepare_training_data
from aboard.flows.train.share_checkpoint import ShareResult
from aboard.flows.train.training_payload import TrainingInputs
from aboard.ui.data.plain_report import format_data_lines
from aboard.ui.data.report_view import DataReportView
from aboard.ui.findings_view import FindingsView
from aboard.ui.number_format import format_count
from aboard.ui.train.prepared import PreparationView, describe_data, describe_mix, describe_steps, render_label


class PreparationReporter:
    """Reports with a transient progress bar on a terminal, and in plain lines to a pipe."""

    def __init__(self, console: Console, config: TrainSettings) -> None:
        self._console = console
        self._config = config
        self._parts: tuple[PreparedDataset, ...] = ()

    def provide(self, cache: Path) -> TrainingInputs | None:
        """Fetches the model and prepares the data; None, after printing the report, if the data check failed."""
        config = self._config
        with self._making() as making:
            making.update(f"model  {config.model}")
            trusted = config.settings["trust_remote_code"]
            model = fetch_model(config.model, from_scratch=config.settings["from_scratch"], trust_remote_code=trusted)
            same = config.tokenizer == config.model
            tokenizer = model if same else fetch_tokenizer(config.tokenizer, trust_remote_code=trusted)
            facts = read_model_facts(model)
            found = self._prepare_data(making, str(tokenizer), cache)
        self.say("model", f"{config.model}{', new weights' if config.settings['from_scratch'] else ''}")
        if found.is_blocked:
            self._print_failed_check(found)
            return None
        self._report_data(found)
        return TrainingInputs(
            settings=config,
            model=model,
            tokenizer=tokenizer,
            facts=facts,
            data=found.data,
            identity=found.identity,
            validation=found.validation,
            vocabulary=found.vocabulary,
        )

    def report_steps(self, boarding: TrainingPreflight, findings: Sequence[Finding]) -> None:
        """Reports the size of a step, and the warnings unless a finding stops the run."""
        nodes = len(boarding.nodes)
        training, ranks = boarding.training, boarding.world
        sequences = sum(part.sequences for part in self._parts)
        self.say("train", describe_steps(training, ranks=ranks, nodes=nodes, sequences=sequences))
        mix = [(part.name, part.share, part.sequences) for part in self._parts if part.share is not None]
        if mix:
            self.say("mix", describe_mix(training, ranks=ranks, parts=mix))
        warnings = [finding for finding in findings if finding.severity is Severity.WARN]
        if warnings and not any(finding.severity is Severity.BLOCK for finding in findings):
            self._console.print(FindingsView(warnings, in_full=False), crop=False)

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
            self.say("checkpoint", f"{shared.name} is the newest one that is complete")
        if shared.sent:
            nodes = format_count(len(shared.nodes), "node")
            self.say("checkpoint", f"{format_size(shared.sent)} of {shared.name} sent to {nodes}")

    def report_upload(self, upload: SyncResult | None) -> None:
        if upload is not None and upload.sent + upload.from_peers:
            passed_on = f", {format_size(upload.from_peers)} of it by other nodes" if upload.from_peers else ""
            self.say(
                "files",
                f"{format_size(upload.sent + upload.from_peers)} of missing files sent to"
                f" {format_count(len(upload.nodes), 'node')}{passed_on}",
            )
        if upload is not None and upload.findings:
            self._console.print(FindingsView(upload.findings, in_full=False), crop=False)

    def say(self, label: str, text: str) -> None:
        text = escape_lines(text)
        if self._console.is_terminal:
            self._console.print(render_label(label, text, self._console.width), soft_wrap=True)
        else:
            sys.stdout.write(f"{label} {text}\n")
            sys.stdout.flush()

    def _prepare_data(self, making: PreparationView, tokenizer: str, cache: Path) -> TrainingDatasets:
        template = self._config.data.template
        text = None if template is None else read_text(FoundFile(template), fix=configuration.FILE.fix("template"))

        def preparing(far: TokenizeProgress) -> None:
            making.update("data   tokenizing", far.bytes, far.of_bytes, f", {format_count(far.tokens, 'token')}")

        making.update("data   reading the files and the tokenizer")
        return prepare_training_data(self._config, tokenizer, cache, template=text, on_progress=preparing)

    def _report_data(self, found: TrainingDatasets) -> None:
        for part in found.data:
            self.say("data", f"{part.name}: {_format_part(part)}" if part.share is not None else _format_part(part))
        if found.validation is not None:
            self.say("validation set", _format_part(found.validation))
        self._parts = found.data
        warnings = [each for each in found.report.findings if each.severity > Severity.INFO]
        if warnings:
            self._console.print(FindingsView(warnings, in_full=False), crop=False)

    def _print_failed_check(self, found: TrainingDatasets) -> None:
        if self._console.is_terminal:
            self._console.print(DataReportView(found.report, stats=False, verbose=False), crop=False)
        else:
            sys.stdout.writelines(f"{line}\n" for line in format_data_lines(found.report, stats=False))

    @contextmanager
    def _making(self) -> Iterator[PreparationView]:
        making = PreparationView(self._console)
        if self._console.is_terminal:
            with making:
                yield making
        else:
            yield making


def fetch_tokenizer(name: str, *, trust_remote_code: bool) -> Path:
    """The directory itself; for a name on the hub, the small files of that model."""
    if Path(name).is_dir():
        return Path(name)
    return fetch_model(name, from_scratch=True, trust_remote_code=trust_remote_code)


def _format_part(part: PreparedDataset) -> str:
    text = describe_data(
        documents=part.documents,
        tokens=part.tokens,
        supervised=part.supervised,
        sequences=part.sequences,
        length=part.length,
        full=part.full,
    )
    return f"{text}{' (cached)' if part.cached else ''}"
