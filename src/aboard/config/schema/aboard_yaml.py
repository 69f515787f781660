"""The sections of aboard.yaml, as validated and as described to editors.

A new section is a model in this package and a field of `AboardConfig`.
"""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag

from aboard.config.schema.base_section import Section
from aboard.config.schema.field_types import (
    OR_TEXT,
    AbsolutePath,
    AddressPattern,
    ByteSize,
    Duration,
    Env,
    Host,
    Line,
    Lines,
    PortNumber,
    ProgramName,
    SequenceLength,
    Slots,
    User,
    Weight,
    Word,
    refuse_value,
)
from aboard.config.schema.monitoring_sections import MetricsSection, NotifySection
from aboard.config.schema.slurm_section import SlurmSection
from aboard.config.schema.train_section import TrainSection
from aboard.core.cluster.node_sets import MAX_NAMES
from aboard.core.text.data_reference import parse_share
from aboard.diagnoses.untrusted import escape_text


class ContainerSection(Section):
    """The container that ranks run in. The agent runs outside."""

    runtime: Literal["apptainer", "singularity", "docker", "podman"]
    """The container runtime. pyxis is an option of srun, and is not supported: see docs/containers.md."""
    image: Word
    """The image: a .sif file or directory on the nodes for Apptainer, an image's name for Docker and Podman."""
    python: ProgramName | None = None
    """The ranks' Python inside: a name on the image's PATH, or a path inside. Default: python3."""
    binds: Lines | None = None
    """Directories and files to bind besides those that Aboard binds itself: SOURCE, SOURCE:TARGET, SOURCE:TARGET:ro."""
    env: Env | None = None
    """Environment variables inside. They override the nodes' `env`."""
    options: Lines | None = None
    """More options for the runtime, one argument each."""
    writable_tmpfs: bool | None = None
    """Let ranks write to the image's own directories; what they write is lost when they end."""
    gpus: Literal["auto", "nvidia", "rocm", "none"] | None = None
    """The GPUs to make available inside. Default: those that the node has."""


class NodeDefaults(Section):
    """Settings of a node; in the `cluster` section they are defaults for all nodes."""

    slots: Slots | None = None
    """Accelerators (or CPU processes) to use on a node. With 0 the node is checked but starts no rank."""
    user: User | None = None
    """The login name. Default: ssh's own configuration."""
    port: PortNumber | None = None
    """The port of the ssh server. Default: ssh's own configuration."""
    python: ProgramName | None = None
    """The node's Python: a name on its PATH, or an absolute path."""
    workdir: AbsolutePath | None = None
    """The directory that ranks start in: an absolute path on the node."""
    env: Env | None = None
    """Environment variables of the ranks. A node's own are added to the cluster's, and override them."""
    fabric_address: AddressPattern | None = None
    """The node's address for training traffic: an address, or a pattern such as {name}i."""
    setup: Lines | None = None
    """Shell lines that run before each rank: conda activate, source venv/bin/activate, module load."""
    container: ContainerSection | None = None
    """The container that ranks run in."""


class NodeSection(NodeDefaults):
    """One node, or a node set whose nodes are all alike."""

    name: Line
    """A hostname or a node set: gpu01, gpu[01-16], alice@gpu01."""
    address: Host | None = None
    """The address that ssh connects to, instead of the name."""


NODE_LINE, NODE_MAPPING = "line", "mapping"


def _tag_node(value: object) -> str:
    return NODE_LINE if isinstance(value, str) else NODE_MAPPING


NodeLineOrMapping = Annotated[
    Annotated[Line, Tag(NODE_LINE)] | Annotated[NodeSection, Tag(NODE_MAPPING)], Discriminator(_tag_node)
]


class ClusterSection(NodeDefaults):
    """The nodes of a run and how to reach them."""

    nodes: Annotated[list[NodeLineOrMapping], *OR_TEXT, Field(min_length=1)] | None = None
    """Node sets such as gpu[01-16] or "gpu01 slots=8", or mappings for nodes that differ."""
    hostfile: Line | None = None
    """A DeepSpeed hostfile, instead of nodes. A relative path starts at this file."""
    slurm: SlurmSection | None = None
    """The Slurm job to submit, instead of nodes: Slurm chooses them."""


class RunSection(Section):
    """What the run writes, for checks before the launch."""

    output: AbsolutePath
    """The directory that the run writes to: an absolute path on the nodes. It need not exist yet."""
    writes: ByteSize
    """The free space that the run needs there: 200GB, 1.5TiB, or bytes. Old checkpoints count until removed."""


SPARE_COUNT, SPARE_NAMES = "spare-count", "spare-names"


def _tag_spares(value: object) -> str:
    return SPARE_COUNT if isinstance(value, int | float) else SPARE_NAMES


SpareNodes = Annotated[
    Annotated[Annotated[int, Field(ge=0, le=MAX_NAMES)], Tag(SPARE_COUNT)]
    | Annotated[Lines, Field(min_length=1), Tag(SPARE_NAMES)],
    Discriminator(_tag_spares),
]


class RecoverSection(Section):
    """What is done when a run fails for a reason that is not the program's; `aboard train` restarts by default."""

    restarts: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """How often a failed run is restarted without a new checkpoint. Default: 10 for `aboard train`, 0 for others."""
    spares: SpareNodes | None = None
    """The last nodes, by number, or nodes by name, on which no ranks start until they replace a node that fails."""
    min_nodes: Annotated[int, Field(ge=1, le=MAX_NAMES)] | None = None
    """Continue training on fewer nodes, but not fewer than these. Needs train.global_batch_size."""
    wait: Duration | None = None
    """How long to wait for a node to return, or for a service outside the run: 90s, 10m, 2h. Default: 10m."""
    standby: bool | None = None
    """Let processes that have done a rank's imports wait for a restart of `aboard train`. Default: true."""


def derive_source_name(path: str) -> str:
    """The default name of a source: its file or directory name without extensions."""
    last = Path(path).name
    return last.split(".")[0] or last or path


def _check_split(text: str) -> str:
    if not re.fullmatch(r"[\w.-]+", text):
        seen = f"'{escape_text(text)}' is not the name of a split: slices and sums are not supported"
        refuse_value(seen, "split")
    return text


def _check_revision(text: str) -> str:
    if not re.fullmatch(r"[\w./-]+", text):
        refuse_value(f"'{escape_text(text)}' is not a name on the Hub", "revision")
    return text


class DatasetSection(Section):
    """A data set of which a split, a subset or a revision is read."""

    path: Annotated[list[Line], *OR_TEXT, Field(min_length=1)]
    """A file, a directory or a Hugging Face Hub name, or several. Relative paths start at this file."""
    split: Annotated[Line, AfterValidator(_check_split)] | None = None
    """The split of a Hub data set or of a directory. Default: train."""
    subset: Annotated[Line, AfterValidator(_check_revision)] | None = None
    """The subset of a Hub data set, such as en: what `load_dataset` calls name."""
    revision: Annotated[Line, AfterValidator(_check_revision)] | None = None
    """The commit, tag or branch of a Hub data set. Default: its main branch."""


class SourceSection(DatasetSection):
    """A data set, or with a weight one of several sources that are mixed."""

    weight: Weight | None = None
    """Its share of the mix, relative to the other weights: 3 and 1 make three quarters of all sequences."""
    name: Line | None = None
    """Its name in a mix. Default: derived from its path. The order of its samples depends on it."""

    @property
    def source_name(self) -> str:
        return self.name or derive_source_name(self.path[0])


SOURCE_LINE, SOURCE_MAPPING = "path", "source"


def _tag_source(value: object) -> str:
    return SOURCE_LINE if isinstance(value, str) else SOURCE_MAPPING


SourcePathOrMapping = Annotated[
    Annotated[Line, Tag(SOURCE_LINE)] | Annotated[SourceSection, Tag(SOURCE_MAPPING)], Discriminator(_tag_source)
]


HeldPathOrMapping = Annotated[
    Annotated[Line, Tag(SOURCE_LINE)] | Annotated[DatasetSection, Tag(SOURCE_MAPPING)], Discriminator(_tag_source)
]


def _check_validation(entries: list[str | DatasetSection]) -> list[str | DatasetSection]:
    names = [entry for entry in entries if isinstance(entry, str)]
    share = parse_share(entries)
    if share is not None and not 0 < share < 1:
        seen = f"{entries[0]} leaves no row for {'training' if share else 'validation'}"
        refuse_value(seen, "share")
    if len(entries) > 1 and any(parse_share([name]) is not None for name in names):
        refuse_value("a share of the training data can't be combined with files", "share")
    return entries


class DataSection(Section):
    """The training data; `aboard data` reads it in the same way as training."""

    files: Annotated[list[SourcePathOrMapping], *OR_TEXT] | None = None
    """Files, directories, Hub names, or mappings; for a mix, each with a weight. Relative paths start at this file."""
    validation: Annotated[list[HeldPathOrMapping], AfterValidator(_check_validation), *OR_TEXT] | None = None
    """The validation set: files, or a share of the training data such as 2%, which is then not trained on."""
    format: Literal["alpaca", "sharegpt", "messages", "prompt-completion", "text", "tokens"] | None = None
    """The row format. Default: detected and reported."""
    text_column: Line | None = None
    """The column with the text, for plain text only."""
    tokenizer: Line | None = None
    """A tokenizer directory, or a Hugging Face Hub name."""
    template: Line | None = None
    """A file with a Jinja chat template, instead of the tokenizer's own. Relative paths start at this file."""
    max_length: SequenceLength | None = None
    """Tokens per sequence. Longer conversations are truncated, longer texts continue in the next sequence."""
    packing: bool | None = None
    """Pack several rows into each sequence, without attention between them. Default: true; false pads each row."""
    loss_on: Literal["answers", "last", "all"] | None = None
    """The supervised tokens: in all answers, in the last answer only, or all tokens."""
    allow: Lines | None = None
    """Codes that do not fail the data check."""


class AboardConfig(Section):
    """The nodes, and what runs on them."""

    model_config = ConfigDict(title="aboard.yaml")

    cluster: ClusterSection | None = None
    """The nodes of a run and how to reach them."""
    run: RunSection | None = None
    """What the run writes; `aboard check` compares it with the free space."""
    recover: RecoverSection | None = None
    """What is done when a run fails: restarts, spare nodes."""
    notify: NotifySection | None = None
    """Who hears of a run's failures and of its end."""
    metrics: MetricsSection | None = None
    """Where the figures of a run go, for Prometheus."""
    data: DataSection | None = None
    """The training data; `aboard data` checks it."""
    train: TrainSection | None = None
    """Settings of `aboard train`, named as in Hugging Face's TrainingArguments."""
