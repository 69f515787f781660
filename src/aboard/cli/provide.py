"""What a training needs is made ready on the head; a line for each part of it, and a bar while it is made."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from aboard.checks.train.boarding import Boarding
from aboard.config.read import read_text
from aboard.config.train import TrainWords
from aboard.core.size import size
from aboard.diagnoses import Finding, Severity, configuration
from aboard.flows.spread import Progress, Spread
from aboard.flows.train import Provisions
from aboard.flows.train_data import Part, Stock, Tokenized, stock
from aboard.flows.train_model import fetched, model_facts
from aboard.ui.data import DataView
from aboard.ui.data_plain import data_lines
from aboard.ui.figures import many
from aboard.ui.findings import FindingsView
from aboard.ui.train_made import Making, data_words, label, mix_words, plan_words


class Teller:
    """Tells on a terminal with a bar that goes away, and into a pipe in whole lines."""

    def __init__(self, console: Console, words: TrainWords) -> None:
        self._console = console
        self._words = words
        self._parts: tuple[Part, ...] = ()

    def provide(self, cache: Path) -> Provisions | None:
        """The model, then the data; None when the gate is shut, and all of it is told."""
        words = self._words
        with self._making() as making:
            making.update(f"model  {words.model}")
            model = fetched(words.model, from_scratch=words.settings["from_scratch"])
            tokenizer = model if words.tokenizer == words.model else fetched_tokenizer(words.tokenizer)
            facts = model_facts(model)
            found = self._stock(making, str(tokenizer), cache)
        self.say("model", f"{words.model}{', new weights' if words.settings['from_scratch'] else ''}")
        if found.shut:
            self._shut(found)
            return None
        self._told(found)
        return Provisions(
            words=words,
            model=model,
            tokenizer=tokenizer,
            facts=facts,
            data=found.data,
            identity=found.identity,
            validation=found.validation,
            vocabulary=found.vocabulary,
        )

    def settled(self, boarding: Boarding, findings: Sequence[Finding]) -> None:
        """What a step takes; and what is worth a warning, unless it is stopped for worse."""
        nodes = len(boarding.nodes)
        training, ranks = boarding.training, boarding.world
        sequences = sum(part.sequences for part in self._parts)
        self.say("train", plan_words(training, ranks=ranks, nodes=nodes, sequences=sequences))
        mixed = [(part.name, part.share, part.sequences) for part in self._parts if part.share is not None]
        if mixed:
            self.say("mix", mix_words(training, ranks=ranks, parts=mixed))
        warned = [finding for finding in findings if finding.severity is Severity.WARN]
        if warned and not any(finding.severity is Severity.BLOCK for finding in findings):
            self._console.print(FindingsView(warned, in_full=False), crop=False)

    @contextmanager
    def sending(self) -> Iterator[Callable[[Progress], None]]:
        """A bar over all nodes while files are brought to them."""
        far: dict[str, Progress] = {}
        with self._making() as making:
            making.update("files  looking at what nodes have")

            def on_progress(progress: Progress) -> None:
                far[progress.node] = progress
                sent = [each for each in far.values() if each.phase in ("sending", "done")]
                done, total = sum(each.done for each in sent), sum(each.total for each in sent)
                making.update("files  sending", done, total, f" to {many(len(far), 'node')}")

            yield on_progress

    def brought(self, told: Spread | None) -> None:
        if told is not None and told.sent:
            self.say("files", f"{size(told.sent)} sent to {many(len(told.nodes), 'node')} that lacked them")

    def say(self, word: str, text: str) -> None:
        if self._console.is_terminal:
            self._console.print(label(word, text, self._console.width), soft_wrap=True)
        else:
            sys.stdout.write(f"{word} {text}\n")
            sys.stdout.flush()

    def _stock(self, making: Making, tokenizer: str, cache: Path) -> Stock:
        template = self._words.data.template
        text = None if template is None else read_text(template, fix=configuration.FILE.fix("template"))

        def preparing(far: Tokenized) -> None:
            making.update("data   tokenizing", far.bytes, far.of_bytes, f", {many(far.tokens, 'token')}")

        making.update("data   looking at the files and the tokenizer")
        return stock(self._words, tokenizer, cache, template=text, on_progress=preparing)

    def _told(self, found: Stock) -> None:
        for part in found.data:
            self.say("data", f"{part.name}: {_part_words(part)}" if part.share is not None else _part_words(part))
        if found.validation is not None:
            self.say("held", _part_words(found.validation))
        self._parts = found.data
        warned = [each for each in found.report.findings if each.severity > Severity.INFO]
        if warned:
            self._console.print(FindingsView(warned, in_full=False), crop=False)

    def _shut(self, found: Stock) -> None:
        if self._console.is_terminal:
            self._console.print(DataView(found.report, stats=False, verbose=False), crop=False)
        else:
            sys.stdout.writelines(f"{line}\n" for line in data_lines(found.report, stats=False))

    @contextmanager
    def _making(self) -> Iterator[Making]:
        making = Making(self._console)
        if self._console.is_terminal:
            with making:
                yield making
        else:
            yield making


def fetched_tokenizer(name: str) -> Path:
    """A directory as it is; a name of the hub is fetched as a model's small files are."""
    return Path(name) if Path(name).is_dir() else fetched(name, from_scratch=True)


def _part_words(part: Part) -> str:
    told = data_words(
        documents=part.documents,
        tokens=part.tokens,
        supervised=part.supervised,
        sequences=part.sequences,
        length=part.length,
        full=part.full,
    )
    return f"{told}{' (cached)' if part.cached else ''}"
