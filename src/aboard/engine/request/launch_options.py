"""The options of a launch as a value: what ranks get, what is checked, how the run recovers."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from aboard.config.input_files import read_text
from aboard.config.this_machine import find_environment
from aboard.core.cluster.cluster import COMMAND_LINE, THIS_MACHINE, Cluster
from aboard.core.plan.deepspeed_env_file import parse_env_file
from aboard.core.plan.launch_request import LaunchRequest, describe_unused_master
from aboard.core.run.lease import ATTACHED_SECONDS, DETACHED_SECONDS, Lease
from aboard.core.run.recovery.recovery_policy import RecoverySettings, StallAction
from aboard.core.run.recovery.recovery_request import RecoveryRequest, parse_spares, resolve_recovery
from aboard.core.text.input_text import find_env_name_error
from aboard.core.text.shell_quoting import quote_typed_words
from aboard.diagnoses import AboardError, InputError, Problem
from aboard.diagnoses.untrusted import LONGEST_WORD, escape_text
from aboard.diagnoses.usage import commands
from aboard.engine.request.node_arguments import NodeArguments
from aboard.engine.request.typed_words import format_typed_command, list_typed_words
from aboard.lazy_dataclass import dataclass
from aboard.transport.open_file_limit import raise_open_file_limit

if TYPE_CHECKING:
    from aboard.engine.request.launch_spec import LaunchSpec


class OptionError(ValueError):
    """An option that contradicts another one."""

    def __init__(self, option: str, seen: str) -> None:
        super().__init__(seen)
        self.option = option


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The options of a launch as typed, and the directory in which they were typed.

    Only scripts written by Aboard give `run`, which was submitted, and `resubmits`, its further jobs. With a
    `sync_limit`, the working directory is sent to every node, up to that many bytes without a question.
    """

    ranks: int | None = None
    envs: tuple[str, ...] = field(default=(), repr=False)
    check: str = "quick"
    alone: bool = False
    detach: bool = False
    restarts: int | None = None
    spares: str | None = None
    on_stall: str | None = None
    min_nodes: int | None = None
    run: str | None = None
    resubmits: int = 0
    # Those of `launch` alone.
    module: bool = False
    no_python: bool = False
    env_file: tuple[str, ...] = ()
    threads: int | None = None
    bind: bool | None = None
    master_address: str | None = None
    master_port: int | None = None
    grace: float = Lease.grace
    lease: float | None = None
    no_beacon: bool = False
    capture: bool | None = None
    sync_limit: int | None = None
    cwd: str = ""

    @property
    def lease_seconds(self) -> float:
        return DETACHED_SECONDS if self.detach else ATTACHED_SECONDS

    def read_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables of `--env` and `--env-file`; a NAME alone has its value in this shell."""
        env: dict[str, str] = {}
        for file in self.env_file:
            env |= parse_env_file(read_text(file, fix=commands.LAUNCH_ENV.fix("file", file=file)), where=file)
        problems = []
        for text in self.envs:
            name, equals, value = text.partition("=")
            trouble = find_env_name_error(name)
            if trouble is None and not equals and name not in environ:
                trouble = f"{name} is not set in this shell"
            if trouble:
                fix = commands.LAUNCH_ENV.fix("value", name=name)
                problems.append(Problem(where=f"--env {name}", seen=trouble, fix=fix))
            else:
                env[name] = value if equals else environ[name]
        if problems:
            raise InputError(commands.LAUNCH_ENV, problems)
        return env

    def check_job_size(self, where: NodeArguments, ranks: int | None) -> tuple[str, ...]:
        """Notes on the size of the Slurm job; one that Aboard submitted has the size that was asked for then."""
        return () if self.run is not None else where.check_job_size(format_typed_command(where.argv), ranks=ranks)

    @property
    def recovery(self) -> RecoveryRequest:
        """What these options ask for."""
        spares = None if self.spares is None else parse_spares(self.spares)
        places = {"spares": f"--spares {self.spares}", "min_nodes": f"--min-nodes {self.min_nodes}"}
        said = {name: place for name, place in places.items() if getattr(self, name) is not None}
        on_stall = None if self.on_stall is None else StallAction(self.on_stall)
        return RecoveryRequest(
            restarts=self.restarts, spares=spares, min_nodes=self.min_nodes, on_stall=on_stall, places=said
        )

    def resolve_recovery(self, asked: RecoveryRequest, names: Sequence[str], **default: Any) -> RecoverySettings:
        """What is done after a failure on these nodes: `asked`, where these options don't say otherwise."""
        settings = resolve_recovery(asked.override(self.recovery), names, **default)
        if self.on_stall == StallAction.RESTART and not settings.restarts:
            raise OptionError("--on-stall", "restart needs --restarts")
        return settings

    def build_spec(
        self,
        where: NodeArguments,
        cluster: Cluster,
        request: LaunchRequest,
        notes: tuple[str, ...],
        *,
        lease: Lease,
        recovery: RecoverySettings,
    ) -> "LaunchSpec":
        """The launch with these options; the nodes need not have a program that is uploaded."""
        from aboard.engine.request.launch_spec import LaunchSpec, choose_subjects  # noqa: PLC0415 - a launch dials first

        raise_open_file_limit(len(cluster))
        if cluster.source == THIS_MACHINE and not self.alone:
            _refuse_one_of_several(where)
        if cluster.source == THIS_MACHINE and self.alone:
            # As if it had been named.
            cluster = replace(cluster, source=COMMAND_LINE)
        return LaunchSpec(
            cluster=cluster,
            request=replace(request, restarts=recovery.restarts),
            lease=lease,
            command=format_typed_command(where.argv),
            subjects=choose_subjects(self.check, None if request.code else request.program, request.env),
            quick=self.check == "quick",
            environment=find_environment(where.environ),
            notes=(*notes, *describe_unused_master(cluster, request, where.environ)),
            sync_limit=self.sync_limit,
            run=self.run,
            resubmits=self.resubmits,
            recovery=recovery,
            argv=where.argv,
            cwd=self.cwd,
            environ=where.environ,
        )


def _refuse_one_of_several(where: NodeArguments) -> None:
    """Refuses to run on this machine where a platform has started the same command on other nodes, too."""
    environ = where.environ

    def exceeds(names: tuple[str, ...], least: int) -> list[str]:
        # torchrun's NNODES may be a range, as in 1:4.
        numbers = {name: environ.get(name, "").rpartition(":")[2] for name in names}
        return [name for name, number in numbers.items() if number.isdecimal() and int(number) > least]

    seen = [*exceeds(("NNODES", "PET_NNODES"), 1), *exceeds(("NODE_RANK", "PET_NODE_RANK"), 0)]
    # With a local rank, this shell is inside of a rank, which may be one of many on one machine.
    if "MASTER_ADDR" in environ and "LOCAL_RANK" not in environ:
        seen += exceeds(("WORLD_SIZE",), 1)
    if seen:
        names = [*seen, *(("MASTER_ADDR",) if "MASTER_ADDR" in environ else ())]
        values = ", ".join(f"{name}={escape_text(environ[name], LONGEST_WORD)}" for name in names)
        _, verb, *rest = list_typed_words(where.argv)
        alone = quote_typed_words(["aboard", verb, "--alone", *rest])
        raise AboardError(commands.LAUNCH_ALONE, f"{values} is set here, but no node is named", alone=alone)
