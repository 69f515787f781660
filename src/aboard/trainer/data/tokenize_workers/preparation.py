"""One preparation: its cache key, its units and shards, leftovers of an earlier attempt, and publishing."""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple
from itertools import islice
from pathlib import Path

from aboard.agent.private_folders import make_private_folder
from aboard.content_hash_cache import ContentHashCache
from aboard.core.decoding import decode, parse_json
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import Untrusted
from aboard.durable_files import FileEntry, HashedFile, sync_folder, write_atomically
from aboard.file_integrity import check_file_hash
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.intake.chunks import Chunk
from aboard.trainer.data.intake.row_formats import RowFormat
from aboard.trainer.data.quality.row_statistics import DataStatistics
from aboard.trainer.data.quality.statistics_json import (
    EDITION,
    decode_statistics,
    encode_statistics,
    make_numbered_location,
)
from aboard.trainer.data.sampling.validation_split import SplitSide
from aboard.trainer.data.store.shard_manifest import (
    MANIFEST_NAME,
    MAX_BROKEN_ROWS,
    VERSION,
    OriginFile,
    Shard,
    ShardManifest,
    format_manifest,
)
from aboard.trainer.data.tokenize_workers.encoded_unit import (
    RowEncoder,
    UnitRecord,
    choose_token_bytes,
    read_unit,
    read_unit_statistics,
)
from aboard.trainer.data.tokenize_workers.preparation_schedule import PreparationSchedule, group_units
from aboard.trainer.data.tokenize_workers.shard_assembly import DamagedUnitError
from aboard.trainer.data.tokenize_workers.tokenize_progress import ProgressCounter, TokenizeProgress
from aboard.trainer.data.tokenize_workers.worker_pool import start_workers
from aboard.trainer.data.tokenize_workers.worker_process import (
    AssembleOrder,
    EncodeOrder,
    WorkerAnswer,
    WorkerOrder,
    WorkerProgress,
)
from aboard.trainer.data.tokens.encoder import Encoder
from aboard.trainer.diagnoses import data

# Bytes of a source in one shard.
SHARD_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class PreparationSource:
    """Chunks read in one format, in this order; only the rows of `part` if it is set."""

    form: RowFormat
    chunks: tuple[Chunk, ...]
    part: SplitSide | None = None


class Preparation:
    """What to make, under a name derived from everything that affects its bytes and from nothing else."""

    def __init__(
        self,
        sources: Sequence[PreparationSource],
        encoder: RowEncoder,
        cache: Path,
        *,
        prints: ContentHashCache,
        workers: int,
        shard_bytes: int,
    ) -> None:
        self._shard_bytes = shard_bytes
        self._encode = encoder
        self._workers = workers
        paths = list(
            dict.fromkeys(path for source in sources for chunk in source.chunks for path in _list_chunk_files(chunk))
        )
        self._contents = dict(zip(paths, prints.of(paths, threads=workers), strict=True))
        # A file may be two sources in different formats: its rows still have one origin.
        self._names = {
            path: chunk.file for source in sources for chunk in source.chunks for path in _list_chunk_files(chunk)
        }
        self.key = self._key(sources)
        self.folder = cache / self.key
        self._making = cache / f"{self.key}.making"
        places = {path: place for place, path in enumerate(paths)}
        self._units = [
            EncodeOrder(
                chunk=chunk,
                form=source.form,
                part=source.part,
                origin=places[Path(chunk.path)],
                path=self._making / "units" / f"{number:06d}",
                stamps=tuple((path, self._contents[path].stamp) for path in _list_chunk_files(chunk)),
            )
            for number, (source, chunk) in enumerate((source, chunk) for source in sources for chunk in source.chunks)
        ]
        self._by_source = [len(source.chunks) for source in sources]

    @property
    def names(self) -> tuple[Untrusted, ...]:
        """The current names of the origins, which may differ from those when the shards were made."""
        return tuple(self._names.values())

    def make(self, progress: Callable[[TokenizeProgress], None]) -> None:
        """Makes what is missing and publishes it; after an interruption, the next attempt continues from there."""
        for folder in (self._making / "units", self._making / "shards"):
            # On nodes, too, nobody else reads the user's data: they get the modes of these.
            make_private_folder(folder)
            _remove_drafts(folder)
        shards = self._shards()
        schedule = PreparationSchedule(self._units, shards)
        schedule.skip_existing(
            {unit.path: record for unit in self._units if (record := read_unit(unit.path)) is not None},
            {shard.number: found for shard in shards if (found := self._load_shard(shard)) is not None},
        )
        progress_counter = ProgressCounter(schedule, self._units, progress)
        if not schedule.done:
            with start_workers(min(self._workers, len(self._units)), self._encode) as pool:
                pool.run(schedule.next, lambda order, answer: self._take(schedule, progress_counter, order, answer))
        self._publish(self._manifest(schedule, self._gate()))

    def clean(self) -> None:
        """Removes leftovers of the preparation, including those of one killed right after publishing."""
        if self._making.is_dir():
            shutil.rmtree(self._making)

    def _key(self, sources: Sequence[PreparationSource]) -> str:
        """A key of contents, not of paths: the same data is found after a move, and on every node."""
        places = {path: place for place, path in enumerate(self._contents)}
        content = {
            "version": VERSION,
            "gate": EDITION,
            "shard_bytes": self._shard_bytes,
            "encoder": self._encode.identity,
            "files": [(content.bytes, content.sha256) for content in self._contents.values()],
            "sources": [
                {
                    "format": (source.form.name, source.form.columns),
                    "part": None if source.part is None else astuple(source.part),
                    "chunks": [
                        (places[Path(chunk.path)], chunk.store, chunk.start, chunk.stop) for chunk in source.chunks
                    ],
                }
                for source in sources
            ],
        }
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    def _shards(self) -> list[AssembleOrder]:
        return [
            AssembleOrder(
                number=number,
                units=tuple(unit.path for unit in self._units[group.start : group.stop]),
                folder=self._making / "shards",
                name=f"{number:05d}",
            )
            for number, group in enumerate(group_units((unit.chunk.size for unit in self._units), self._shard_bytes))
        ]

    def _record_of(self, order: AssembleOrder) -> Path:
        return self._making / "units" / f"shard-{order.name}.json"

    def _load_shard(self, order: AssembleOrder) -> Shard | None:
        """A shard made by an earlier attempt, if it is unchanged."""
        try:
            found = decode(Shard, parse_json(self._record_of(order).read_bytes()), strict=True)
            for file in found.files:
                check_file_hash(order.folder, file)
        except (OSError, ValueError, KeyError, TypeError, AboardError):
            return None
        return found

    def _take(
        self, schedule: PreparationSchedule, progress_counter: ProgressCounter, order: WorkerOrder, answer: WorkerAnswer
    ) -> None:
        if isinstance(answer, WorkerProgress):
            progress_counter.add_report(order, answer)
        elif isinstance(answer, DamagedUnitError):
            if not schedule.retry_unit(answer):
                seen = f"data read back from {answer.unit} repeatedly differed from what was written"
                raise AboardError(data.DISK, seen, "lies", folder=self._making)
        elif isinstance(order, EncodeOrder) and isinstance(answer, UnitRecord):
            schedule.add_unit(order, answer)
            progress_counter.finish_unit(order, answer)
        elif isinstance(order, AssembleOrder) and isinstance(answer, Shard):
            write_atomically(self._record_of(order), json.dumps(asdict(answer)), sync=False)
            schedule.add_shard(order, answer)
            for unit in order.units:
                for file in schedule.records[unit].files:
                    (unit.parent / file.name).unlink(missing_ok=True)

    def _gate(self) -> FileEntry:
        """The statistics for the data check per source: one unit at a time, to bound memory."""
        units = iter(self._units)
        statistics = []
        for count in self._by_source:
            tallies = (
                decode_statistics(read_unit_statistics(unit.path), make_numbered_location)
                for unit in islice(units, count)
            )
            statistics.append(encode_statistics(sum(tallies, DataStatistics())))
        file = HashedFile(self._making / "shards" / "gate.json")
        file.write(json.dumps(statistics, ensure_ascii=False).encode())
        return file.publish(sync=True)

    def _manifest(self, schedule: PreparationSchedule, gate: FileEntry) -> ShardManifest:
        records = [(unit.origin, schedule.records[unit.path]) for unit in self._units]
        units = {origin: record.unit for origin, record in records}
        broken: Counter[str] = Counter()
        for _, record in records:
            broken.update(record.broken)
        return ShardManifest(
            token_bytes=choose_token_bytes(self._encode.vocabulary.size),
            vocabulary=self._encode.vocabulary.size,
            encoder=self._encode.identity,
            made_with=_describe_encoder(self._encode),
            shards=tuple(shard for _, shard in sorted(schedule.shards.items())),
            origins=tuple(
                OriginFile(
                    name=self._names[path], bytes=content.bytes, sha256=content.sha256, unit=units.get(number, "row")
                )
                for number, (path, content) in enumerate(self._contents.items())
            ),
            broken=dict(sorted(broken.items())),
            broken_first=tuple(islice((row for _, record in records for row in record.broken_first), MAX_BROKEN_ROWS)),
            gate_file=gate,
        )

    def _publish(self, manifest: ShardManifest) -> None:
        shards = self._making / "shards"
        _remove_drafts(shards)
        write_atomically(shards / MANIFEST_NAME, format_manifest(manifest), sync=True)
        sync_folder(shards)
        shards.rename(self.folder)
        sync_folder(self.folder.parent)
        self.clean()


def _list_chunk_files(chunk: Chunk) -> tuple[Path, ...]:
    """The files that a chunk is read from: Megatron's come in pairs."""
    path = Path(chunk.path)
    if chunk.store != "megatron":
        return (path,)
    return (path, Path(chunk.path.removesuffix(".idx") + ".bin"))


def _describe_encoder(encoder: RowEncoder) -> dict[str, str]:
    """For people who compare two manifests: the single parts of the encoder's identity."""
    if not isinstance(encoder, Encoder):
        return {}
    vocabulary = encoder.vocabulary
    template = encoder.custom_template or f"{vocabulary.plain}\n{vocabulary.with_tools}"
    return {
        "tokenizer_sha256": hashlib.sha256(vocabulary.json.encode()).hexdigest(),
        "template_sha256": hashlib.sha256(template.encode()).hexdigest(),
        "loss_on": encoder.loss_on,
    }


def _remove_drafts(folder: Path) -> None:
    """Removes the drafts of a killed worker; the lock is held, so nobody else writes."""
    for path in folder.glob(".*"):
        path.unlink()
