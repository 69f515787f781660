"""The section `cluster.slurm`: the job that `aboard launch` and `aboard train` submit from a login node."""

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from aboard.config.schema.base_section import Section
from aboard.config.schema.field_types import OR_TEXT, Line, refuse_value
from aboard.core.slurm.batch_script import OPTION_KEYS, OWN_OPTIONS, parse_option_name
from aboard.diagnoses.untrusted import escape_text

# sbatch reads quotes, backslashes and comments in #SBATCH lines by rules of its own.
_VALUE = re.compile(r"[!$-&(-\[\]-~]+")
_TIME = re.compile(r"[0-9]+(-[0-9]{1,2}(:[0-9]{1,2}){0,2}|(:[0-9]{1,2}){0,2})|UNLIMITED|INFINITE")


def _check_value(text: str) -> str:
    if not _VALUE.fullmatch(text) or text.startswith("-"):
        refuse_value(f"'{escape_text(text)}' is not a value of an sbatch option", "slurm-value")
    return text


def _check_time(text: str) -> str:
    if not _TIME.fullmatch(text):
        refuse_value(f"'{escape_text(text)}' is not a time limit of Slurm", "slurm-time")
    return text


def _convert_minutes(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else value


def _check_option(text: str) -> str:
    name = parse_option_name(text)
    if name is None:
        refuse_value(f"'{escape_text(text)}' is not an option of sbatch", "slurm-option")
    if name in OPTION_KEYS:
        refuse_value(f"{name} has a key of its own", "slurm-key", key=OPTION_KEYS[name])
    if name in OWN_OPTIONS:
        refuse_value(f"Aboard sets {name} itself", "slurm-own", option=name)
    return text


SlurmValue = Annotated[str, AfterValidator(_check_value)]
TimeLimit = Annotated[
    str,
    BeforeValidator(_convert_minutes),
    AfterValidator(_check_time),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["24:00:00", "2-00:00:00", 90]}),
]
SbatchOption = Annotated[Line, AfterValidator(_check_option)]
NodeCount = Annotated[int, Field(ge=1, le=100_000)]
GpuCount = Annotated[int, Field(ge=1, le=1024)]
JobCount = Annotated[int, Field(ge=0, le=1000)]


class ResubmitSection(Section):
    """Whether a training run that Slurm ended continues in another job."""

    limit: JobCount
    """How many further jobs may continue the training. A job that made no progress is not continued."""


class SlurmSection(Section):
    """The job to submit from a login node; inside a job, its nodes are used and this section is ignored."""

    nodes: NodeCount
    """The number of nodes."""
    partition: SlurmValue | None = None
    """The partition, or several with commas. Default: the cluster's."""
    gpus_per_node: GpuCount | None = None
    """GPUs on each node. For a type of GPU, use extra: --gres=gpu:a100:8."""
    account: SlurmValue | None = None
    """The account to charge."""
    time: TimeLimit | None = None
    """The time limit: hours:minutes:seconds, days-hours, or minutes. Default: the partition's."""
    qos: SlurmValue | None = None
    """The quality of service."""
    constraint: SlurmValue | None = None
    """Features that the nodes need, such as a100&nvlink."""
    exclude: SlurmValue | None = None
    """Nodes not to use, such as n[3,7-9]."""
    extra: Annotated[list[SbatchOption], *OR_TEXT] | None = None
    """More options of sbatch, one each: --exclusive, --mem=0."""
    resubmit: ResubmitSection | None = None
    """Continue training in another job when the time limit or a preemption ended it."""
