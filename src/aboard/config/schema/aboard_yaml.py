"""The sections of aboard.yaml: what may be written, checked and described for editors. Only what is obeyed is here.

A new section is a model in this room and one field of `Document`.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from aboard.config.schema.base_section import Section
from aboard.config.schema.field_types import (
    OR_TEXT,
    AbsolutePath,
    AddressPattern,
    ByteSize,
    Env,
    Host,
    Line,
    Lines,
    PortNumber,
    Program,
    SequenceLength,
    Slots,
    User,
    Weight,
    Word,
)
from aboard.config.schema.train_section import TrainSection


class ContainerSection(Section):
    """The container that ranks run in. The agent stays outside."""

    runtime: Literal["apptainer", "singularity", "docker", "podman", "pyxis"]
    """The program that starts it."""
    image: Word
    """The image: a .sif file, a registry reference, or a squashfs file."""
    options: Lines | None = None
    """Further options for the runtime, one argument each."""


class NodeDefaults(Section):
    """What a node can have; written for the cluster it is the default of every node."""

    slots: Slots | None = None
    """Accelerators (or CPU processes) to use on a node. With 0 it is checked and starts no rank."""
    user: User | None = None
    """The login name. Without it, ssh's own configuration decides."""
    port: PortNumber | None = None
    """The port of the ssh server. Without it, ssh's own configuration decides."""
    python: Program | None = None
    """The Python of the node: a name on its PATH, or an absolute path."""
    workdir: AbsolutePath | None = None
    """The directory that ranks start in: an absolute path on the node."""
    env: Env | None = None
    """Environment variables of the ranks. A node's own are added to the cluster's, and win."""
    fabric_address: AddressPattern | None = None
    """Where peers reach the node for training traffic: an address, or a pattern such as {name}i."""
    setup: Lines | None = None
    """Shell lines that run before each rank: conda activate, source venv/bin/activate, module load."""
    container: ContainerSection | None = None
    """The container that ranks run in."""


class NodeSection(NodeDefaults):
    """One node, or one node set whose nodes are all alike."""

    name: Line
    """A host name or a node set: gpu01, gpu[01-16], alice@gpu01."""
    address: Host | None = None
    """What ssh is given instead of the name."""


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


class RunSection(Section):
    """What runs on the nodes, as far as it must be known beforehand."""

    output: AbsolutePath
    """The directory that the run writes to: an absolute path on the nodes. It need not be there yet."""
    writes: ByteSize
    """How much the disk behind it must have room for: 200GB, 1.5TiB, or bytes. Old checkpoints count until removed."""


class SourceSection(Section):
    """One of several sources that are mixed by weight."""

    path: Annotated[list[Line], *OR_TEXT, Field(min_length=1)]
    """A file, a directory or a name of the hub, or several. A relative path starts at this file."""
    weight: Weight
    """How much of the mix it is, against the weights of the others: 3 beside 1 is three quarters of all sequences."""
    name: Line | None = None
    """What it is called in messages. Without it, as its path is. The order of its samples follows from it."""


SOURCE_LINE, SOURCE_MAPPING = "path", "source"


def _tag_source(value: object) -> str:
    return SOURCE_LINE if isinstance(value, str) else SOURCE_MAPPING


SourcePathOrMapping = Annotated[
    Annotated[Line, Tag(SOURCE_LINE)] | Annotated[SourceSection, Tag(SOURCE_MAPPING)], Discriminator(_tag_source)
]


class DataSection(Section):
    """What is trained on; `aboard data` reads it as training does."""

    files: Annotated[list[SourcePathOrMapping], *OR_TEXT] | None = None
    """Files, directories or names of the hub; or, to mix them, each with path and weight. Paths start at this file."""
    validation: Lines | None = None
    """Further ones, which are not trained on; rows that are in both are found."""
    format: Literal["alpaca", "sharegpt", "messages", "prompt-completion", "text", "tokens"] | None = None
    """How rows are written. Without it, it is recognised and said."""
    text_column: Line | None = None
    """The column that has the text, of plain text only."""
    tokenizer: Line | None = None
    """A directory with a tokenizer, or a name of the hub."""
    template: Line | None = None
    """A file with a chat template in Jinja, instead of the tokenizer's own. A relative path starts at this file."""
    max_length: SequenceLength | None = None
    """Tokens of a sequence: longer conversations are cut, longer texts go on in the next."""
    packing: bool | None = None
    """Fill each sequence with several rows, which don't see each other. Without it, true; false pads each row."""
    loss_on: Literal["answers", "last", "all"] | None = None
    """Which tokens are supervised: those of all answers, of the last answer only, or all."""
    allow: Lines | None = None
    """Codes of the gate that may pass."""


class AboardConfig(Section):
    """The nodes, and what runs on them."""

    model_config = ConfigDict(title="aboard.yaml")

    cluster: ClusterSection | None = None
    """The nodes of a run and how to reach them."""
    run: RunSection | None = None
    """What the run will write; `aboard check` holds the free space against it."""
    data: DataSection | None = None
    """What is trained on; `aboard data` looks at it."""
    train: TrainSection | None = None
    """How it is trained, in the names of Hugging Face's TrainingArguments; `aboard train` does it."""
