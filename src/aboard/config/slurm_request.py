"""Reads the section `cluster.slurm`: the job that a run from a login node asks for."""

from contextlib import suppress
from typing import TYPE_CHECKING

from aboard.config.input_files import YAML_SUFFIXES, find_default_files
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.diagnoses import NO_FIX, InputError
from aboard.diagnoses.usage import configuration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aboard.config.config_loader import LoadedConfig
    from aboard.config.schema.slurm_section import SlurmSection


def load_slurm_settings(
    sources: "Sequence[str]" = (), *, hostfile: str | None = None, sets: "Sequence[str]" = (), allow_file: bool = False
) -> SlurmSettings | None:
    """The request in the files that `load_cluster` would read, or in --set; None if there is none."""
    files = [source for source in sources if source.endswith(YAML_SUFFIXES)]
    names = [source for source in sources if source not in files]
    if not sources and hostfile is None:
        files = find_default_files(allow_file=allow_file)
    # pydantic takes 100 ms, which a launch without Slurm doesn't wait for.
    if not any(_has_section(file) for file in files) and not any(text.startswith("cluster.slurm") for text in sets):
        return None
    from aboard.config.config_loader import load_config_files  # noqa: PLC0415 - the reason is above

    config = load_config_files(files, sets)
    section = config.document.cluster
    if section is None or section.slurm is None:
        return None
    others = (["the command line"] if names else []) + ([f"--hostfile {hostfile}"] if hostfile else [])
    _refuse_other_nodes(config, others)
    return _build_settings(section.slurm)


def _has_section(file: str) -> bool:
    # PyYAML is only needed for a file.
    from aboard.config.allowed_files import read_config_tree  # noqa: PLC0415 - the reason is above
    from aboard.config.yaml_tree import Table  # noqa: PLC0415 - the reason is above

    # Whoever reads the file next reports its errors.
    with suppress(InputError):
        section = read_config_tree(file, fix=NO_FIX).values.get("cluster")
        return isinstance(section, Table) and "slurm" in section.values
    return False


def _refuse_other_nodes(config: "LoadedConfig", others: list[str]) -> None:
    section = config.document.cluster
    others += [
        f"cluster.{key} ({config.where('cluster', key)})"
        for key in ("nodes", "hostfile")
        if getattr(section, key) is not None
    ]
    if others:
        seen = (
            f"the nodes were specified twice, by {others[0]} and by cluster.slurm ({config.where('cluster', 'slurm')})"
        )
        raise InputError.of(configuration.CLUSTER_TWICE, "cluster", seen)


def _build_settings(section: "SlurmSection") -> SlurmSettings:
    return SlurmSettings(
        **section.model_dump(exclude={"extra", "resubmit"}),
        extra=tuple(section.extra or ()),
        resubmit_limit=section.resubmit.limit if section.resubmit else 0,
    )
