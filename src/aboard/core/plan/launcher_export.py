"""Exports a plan for another launcher, as text to read before running it.

There is no lock-in: torchrun or DeepSpeed can start what Aboard would start. Possible secrets are never written; the
text takes them from the reader's own environment.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace

from aboard.core.cluster.container import Container
from aboard.core.cluster.interpreter import NO_ENV
from aboard.core.cluster.node import Node
from aboard.core.cluster.node_sets import fold_names
from aboard.core.plan.plan import NodePlan, Plan
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.plan.rank_variables import RankLayout, build_task_env, build_torchrun_env
from aboard.core.secrets.secret_names import is_secret, list_secret_names
from aboard.core.text.input_text import format_count
from aboard.diagnoses import InputError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import planning
from aboard.lazy_dataclass import dataclass

_GPU_OPTIONS = {"apptainer": "--nv or --rocm", "singularity": "--nv or --rocm", "docker": "--gpus=all"}
_PODMAN_GPUS = "--device=nvidia.com/gpu=all"


def build_container_words(container: Container, workdir: str | None, names: Iterable[str]) -> list[list[str]]:
    """Groups of words, one per line; `names` are exported variables, which Apptainer passes by itself."""
    if container.is_apptainer:
        start, bind, enter = [[container.runtime, container.entry]], "--bind", "--pwd"
    else:
        start, bind, enter = (
            [[container.runtime, "run", "--rm", "--network=host", "--ipc=host"]],
            "--volume",
            "--workdir",
        )
        start += [["--env", name] for name in names]
    for each in [*([workdir] if workdir else []), *container.binds]:
        source, _, rest = each.partition(":")
        start.append([bind, each if container.is_apptainer else f"{source}:{rest or source}"])
    inside = workdir if container.workdir is None else container.workdir
    start += [[enter, inside]] if inside else []
    start += [[word] for word in (*_list_gpu_options(container), *container.options)]
    if container.writable_tmpfs and container.is_apptainer:
        start.append(["--writable-tmpfs"])
    return [*start, [container.image]]


def describe_gpu_choice(container: Container) -> Iterator[str]:
    """What Aboard would find out on the node and the reader has to."""
    if container.gpus == "auto":
        option = _GPU_OPTIONS.get(container.runtime, _PODMAN_GPUS)
        yield f"# With GPUs, add {option} before the image. Bind NCCL's files and caches that the ranks need."


def _list_gpu_options(container: Container) -> list[str]:
    if container.gpus == "nvidia":
        return ["--nv"] if container.is_apptainer else [_GPU_OPTIONS.get(container.runtime, _PODMAN_GPUS)]
    if container.gpus == "rocm":
        return ["--rocm"] if container.is_apptainer else ["--device=/dev/kfd", "--device=/dev/dri"]
    return []


DEFAULT_PORT = 29_500  # torch's default, for a plan whose port is chosen at launch

SETUP_FILE = "setup.sh"

_DEVICES = "CUDA_VISIBLE_DEVICES"
_SLOT_NUMBERS = re.compile(r"\d+(,\d+)*")
_PDSH_MARK = re.compile(r"%[hnu%]")  # pdsh replaces these with a host, a rank or a user
_PLAIN_VALUE = re.compile(r"[\w@%+=:,./-]*")


@dataclass(frozen=True, kw_only=True)
class NodeExport:
    """One node's part: `env` is what all of its ranks get besides torch's variables, `slots` are its accelerators."""

    node: Node
    ranks: int
    slots: tuple[int, ...] | None = None
    env: Mapping[str, str] = field(default_factory=lambda: NO_ENV, repr=False)


@dataclass(frozen=True, kw_only=True)
class PlanExport:
    """The part of a plan that another launcher needs; nodes are in rank order."""

    nodes: tuple[NodeExport, ...]
    program: Program
    master_address: str
    master_port: int


@dataclass(frozen=True, kw_only=True)
class DeepSpeedFiles:
    """The files that DeepSpeed needs to start a plan, by name; `setup` is "" where nodes need none."""

    hostfile: str
    deepspeed_env: str
    setup: str
    command: str


def build_plan_export(plan: Plan) -> PlanExport:
    """The part of the plan that other launchers need, without what they set themselves."""
    layout = RankLayout(rank=0, world=1, local=0, local_world=1, group=0, groups=1)
    # torchrun sets the second one, and torch has the same default.
    launcher_names = {*build_torchrun_env(layout, plan.master, plan.run), "TORCH_NCCL_ASYNC_ERROR_HANDLING"}
    launcher_names |= build_task_env(layout).keys()
    return PlanExport(
        nodes=tuple(_build_node_export(part, launcher_names) for part in plan.parts),
        program=plan.program,
        master_address=plan.master.address,
        master_port=plan.master.port or DEFAULT_PORT,
    )


def format_torchrun(export: PlanExport) -> str:
    """A block of shell lines for each node, to be run there at about the same time."""
    top = [
        "#!/usr/bin/env bash",
        f"# {_format_size(export)} by torchrun. Run each part on its node, all at once: torchrun",
        "# waits for the others, and does not say which are missing.",
    ]
    if len({part.ranks for part in export.nodes}) > 1:
        top += [
            "# The nodes have different numbers of ranks, which torchrun accepts although its manual says otherwise."
        ]
    blocks = (line for rank in range(len(export.nodes)) for line in _format_node_block(export, rank))
    return "\n".join([*top, *blocks]) + "\n"


def format_deepspeed(export: PlanExport) -> DeepSpeedFiles:
    """A hostfile, an env file, and the command for a node that has pdsh and reaches the others by ssh."""
    if len({part.env.get("PATH") for part in export.nodes}) > 1:
        # DeepSpeed sets one PATH for all nodes, and ranks find their interpreter without it.
        export = replace(export, nodes=tuple(_drop_path(part) for part in export.nodes))
    _refuse_differences(export)
    first = export.nodes[0]
    return DeepSpeedFiles(
        hostfile="".join(f"{part.node.target} slots={_count_slots(part)}\n" for part in export.nodes),
        deepspeed_env="".join(_format_env_lines(first.env)),
        setup="".join(f"{line}\n" for line in first.node.setup),
        command="\n".join(_format_deepspeed_lines(export)) + "\n",
    )


def _build_node_export(node_plan: NodePlan, launcher_names: Iterable[str]) -> NodeExport:
    left_out = {*launcher_names, _DEVICES}
    env = {name: value for name, value in node_plan.starts[0].env.items() if name not in left_out}
    devices = node_plan.starts[0].env.get(_DEVICES)
    if devices is not None and not _SLOT_NUMBERS.fullmatch(devices):
        env[_DEVICES], devices = devices, None  # UUIDs or an empty list, not slots
    slots = tuple(map(int, devices.split(","))) if devices else None
    return NodeExport(node=node_plan.node, ranks=len(node_plan.starts), slots=slots, env=env)


def _format_size(export: PlanExport) -> str:
    ranks = sum(part.ranks for part in export.nodes)
    return f"{format_count(ranks, 'rank')} on {format_count(len(export.nodes), 'node')}"


def _format_node_block(export: PlanExport, rank: int) -> Iterator[str]:
    part = export.nodes[rank]
    node = part.node
    count = format_count(part.ranks, "rank")
    yield ""
    yield f"# {node.name}" + (f" ({node.address})" if node.address else "") + f": node {rank}, {count}"
    if node.workdir:
        yield f"cd {shlex.quote(node.workdir)}"
    yield from node.setup
    own = node.interpreter.env if node.interpreter is not None else NO_ENV
    variables = _build_node_env(part)
    for name, value in sorted(variables.items()):
        if name == "PATH" and value == own.get(name):
            yield f'export PATH={shlex.quote(node.rank_python.rpartition("/")[0])}:"$PATH"'
        else:
            yield _format_export(name, value)
    container = [] if node.container is None else build_container_words(node.container, node.workdir, sorted(variables))
    if node.container is not None:
        yield from describe_gpu_choice(node.container)
    yield _join_lines(
        [
            *container,
            [node.rank_python, "-m", "torch.distributed.run"],
            ["--nnodes", str(len(export.nodes)), "--node-rank", str(rank), "--nproc-per-node", str(part.ranks)],
            ["--master-addr", export.master_address, "--master-port", str(export.master_port)],
            _build_torchrun_program(export.program, node),
            *_group_arguments(export.program.args),
        ]
    )


def _build_torchrun_program(program: Program, node: Node) -> list[str]:
    """Starts a script that needs --local_rank=N through a shell, since torchrun only sets LOCAL_RANK."""
    if program.local_rank:
        python = [node.rank_python, *program.options]
        start = {ProgramKind.SCRIPT: python, ProgramKind.MODULE: [*python, "-m"], ProgramKind.PROGRAM: []}[program.kind]
        line = f'exec {shlex.join([*start, program.target])} {program.local_rank}="$LOCAL_RANK" "$@"'
        return ["--no-python", "bash", "-c", line, "bash"]
    return [
        *{ProgramKind.SCRIPT: [], ProgramKind.MODULE: ["--module"], ProgramKind.PROGRAM: ["--no-python"]}[program.kind],
        program.target,
    ]


def _format_deepspeed_lines(export: PlanExport) -> Iterator[str]:
    node = export.nodes[0].node
    yield "#!/usr/bin/env bash"
    yield f"# {_format_size(export)} by DeepSpeed, which needs pdsh on the machine that runs this."
    yield f"# Save hostfile and .deepspeed_env in {node.workdir or 'the directory that this is run in'}."
    if node.setup:
        yield f"# Save {SETUP_FILE} there on every node: DeepSpeed sources it first."
    for rank, part in enumerate(export.nodes):
        yield f"# {part.node.name}: node {rank}, {part.ranks} of {format_count(_count_slots(part), 'slot')}"
        if part.node.user or part.node.port:
            login = f"{part.node.user or ''}@{part.node.target}:{part.node.port or ''}".strip("@:")
            yield f"#   reached as {login}; ~/.ssh/config must say so"
    if secrets := sorted(list_secret_names(export.nodes[0].env)):
        yield "# Not written down: put your own values into .deepspeed_env, as NAME=value, for"
        yield f"#   {' '.join(secrets)}"
    if node.workdir:
        yield f"cd {shlex.quote(node.workdir)}"
    setup = [["--venv_script", f"{node.workdir or '.'}/{SETUP_FILE}"]] if node.setup else []
    kind = {ProgramKind.SCRIPT: [], ProgramKind.MODULE: ["--module"], ProgramKind.PROGRAM: ["--no_python"]}[
        export.program.kind
    ]
    local_rank_flags = [] if export.program.local_rank else ["--no_local_rank"]
    include = [["--include", _format_include(export)]] if any(_is_partial(part) for part in export.nodes) else []
    yield _join_lines(
        [
            [node.rank_python, "-m", "deepspeed.launcher.runner", "--hostfile", "hostfile", "--force_multi"],
            *include,
            *setup,
            ["--master_addr", export.master_address, "--master_port", str(export.master_port)],
            [*local_rank_flags, *kind, shlex.quote(export.program.target)],
            *_group_arguments(tuple(map(_quote_for_pdsh, export.program.args))),
        ]
    )


def _quote_for_pdsh(word: str) -> str:
    """Quotes a word for the remote shell; DeepSpeed puts `"` around words with a blank, and only those."""
    return re.sub(r"([\\$`])", r"\\\1", word) if " " in word else shlex.quote(word)


def _refuse_differences(export: PlanExport) -> None:
    """Refuses nodes with different settings, since DeepSpeed starts the same command everywhere."""
    first = export.nodes[0]
    inside = [part.node.name for part in export.nodes if part.node.container is not None]
    if inside:
        seen = f"ranks on {fold_names(inside)} run in a container, and DeepSpeed starts its launcher outside of it"
        raise _build_refusal(seen, "container")
    odd = [word for word in (export.program.target, *export.program.args) if _PDSH_MARK.search(word) or "\n" in word]
    if not _PLAIN_VALUE.fullmatch(first.node.workdir or "") or odd:
        word = odd[0] if odd else first.node.workdir or ""
        seen = f"'{escape_text(word)}' can't be passed through DeepSpeed, which gives it to a shell unquoted"
        raise _build_refusal(seen, "spelling")
    for what, value in (
        ("python", lambda part: part.node.rank_python),
        ("workdir", lambda part: part.node.workdir),
        ("setup", lambda part: part.node.setup),
        ("env", lambda part: dict(part.env)),
    ):
        others = [part.node.name for part in export.nodes if value(part) != value(first)]
        if others:
            names, own = fold_names(others), first.node.name
            seen = f"{names} has a different {what} than {own}; DeepSpeed has one for all nodes"
            raise _build_refusal(seen, "different", what=what)


def _build_refusal(seen: str, variant: str, **values: str) -> InputError:
    return InputError.of(planning.EXPORT_DEEPSPEED, "--as deepspeed", seen, variant, **values)


def _drop_path(export: NodeExport) -> NodeExport:
    return replace(export, env={name: value for name, value in export.env.items() if name != "PATH"})


def _build_node_env(export: NodeExport) -> dict[str, str]:
    if export.slots is None:
        return dict(export.env)
    return {**export.env, _DEVICES: ",".join(map(str, export.slots))}


def _count_slots(export: NodeExport) -> int:
    """The slots to write into a hostfile: they count from 0, so they must include the last one in use."""
    used = export.ranks if export.slots is None else max(export.slots) + 1
    return max(used, export.node.slots or 0)


def _is_partial(export: NodeExport) -> bool:
    return _list_slot_numbers(export) != tuple(range(_count_slots(export)))


def _list_slot_numbers(export: NodeExport) -> tuple[int, ...]:
    return tuple(range(export.ranks)) if export.slots is None else export.slots[: export.ranks]


def _format_include(export: PlanExport) -> str:
    return "@".join(f"{part.node.target}:{','.join(map(str, _list_slot_numbers(part)))}" for part in export.nodes)


def _format_export(name: str, value: str) -> str:
    if is_secret(name):
        return f'export {name}="${name}"  # not written down: set it in the shell that runs this'
    return f"export {name}={shlex.quote(value)}"


def _format_env_lines(env: Mapping[str, str]) -> Iterator[str]:
    """The lines of the env file; DeepSpeed splits at the first `=` and double-quotes unusual values unescaped."""
    for name, value in sorted(env.items()):
        if is_secret(name):
            continue  # listed in the command's comments: a comment here would crash DeepSpeed
        if "\n" in value:
            seen = f"{name} has a line break in its value, which .deepspeed_env can't contain"
            raise _build_refusal(seen, "env", name=name)
        safe = value if _PLAIN_VALUE.fullmatch(value) else re.sub(r'([\\"$`])', r"\\\1", value)
        yield f"{name}={safe}\n"


def _group_arguments(words: tuple[str, ...]) -> Iterator[list[str]]:
    """The script's arguments, a flag and its value on one line."""
    line: list[str] = []
    for word in words:
        if line and word.startswith("-"):
            yield line
            line = []
        line.append(word)
    if line:
        yield line


def _join_lines(lines: list[list[str]]) -> str:
    return " \\\n    ".join(shlex.join(line) for line in lines)
