"""A plan on a terminal or in a file: what will be started on which node, once for all equal nodes."""

import shlex
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TypeVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.shared.labelled_text import wrap_labelled
from aboard.commands.shared.number_format import format_count
from aboard.core.cluster.container import Container
from aboard.core.cluster.node import Node
from aboard.core.cluster.node_resources import NodeResources
from aboard.core.cluster.node_sets import fold_names
from aboard.core.cluster.setup_commands import prepend_setup
from aboard.core.plan.plan import NodePlan, Plan, Start
from aboard.core.plan.rank_variables import (
    INTERFACE_VARIABLES,
    RankLayout,
    build_node_env,
    build_task_env,
    build_torchrun_env,
)
from aboard.core.text.rank_sets import fold_ranks
from aboard.core.text.shell_quoting import join_argv, quote_word
from aboard.diagnoses.untrusted import escape_text
from aboard.engine.records.plan_environment import PlanEnvironment, compare_environments
from aboard.engine.records.secret_redaction import build_redactor
from aboard.lazy_dataclass import dataclass

FREE_PORT = "a free port, chosen just before the start"
BEACON = "each node adds PYTHONPATH, ABOARD_BEACON, ABOARD_CHILD and TORCHELASTIC_ERROR_FILE"
CONTAINER = (
    "each node adds the options of its GPUs, and binds the working directory and the NCCL files, InfiniBand devices and"
    " caches that it has"
)
# The trainer's settings and paths, as JSON of thousands of characters.
TRAINING = "ABOARD_TRAINING"
# `prepend_setup` puts these words before a command: bash -c SCRIPT bash.
SETUP_WORDS = 4
ANY_LENGTH = 10_000

_Value = TypeVar("_Value")


class PlanView:
    """Print it with `crop=False`, so that long commands are not cut."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._hide = build_redactor(plan)
        self._env = compare_environments(plan, self._hide)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._heading(options.max_width)
        for group in self._groups():
            yield ""
            yield from self._group(group)
        yield ""
        yield from self._environment(options.max_width)

    def _heading(self, width: int) -> Iterator[Text]:
        plan, master = self._plan, self._plan.master
        yield _render_line("run        ", plan.run, style="bold")
        yield _render_line(
            "world      ", f"{format_count(plan.world, 'rank')} on {format_count(len(plan.parts), 'node')}"
        )
        where = f"{master.address}:{master.port}" if master.port else f"{master.address}, {FREE_PORT}"
        yield _render_line("master     ", f"{where} (rank 0, on {master.node})")
        interfaces = dict.fromkeys(self._env.same[name] for name in INTERFACE_VARIABLES if name in self._env.same)
        if interfaces:
            yield _render_line("interface  ", ", ".join(interfaces))
        if any(start.beacon for _node, start in plan.starts()):
            yield from wrap_labelled(Text("beacon     ", style="dim"), f"on: {BEACON}", width)
        if any(start.container is not None for _node, start in plan.starts()):
            yield from wrap_labelled(Text("container  ", style="dim"), CONTAINER, width)

    def _groups(self) -> list[list[int]]:
        """The indices of nodes that differ only in their names and rank numbers, grouped."""
        groups: dict[_Shape, list[int]] = {}
        for place, part in enumerate(self._plan.parts):
            groups.setdefault(self._shape(place, part), []).append(place)
        return list(groups.values())

    def _shape(self, place: int, node_plan: NodePlan) -> "_Shape":
        return _Shape(
            container=_describe_container(node_plan.starts[0].container),
            interpreter="" if node_plan.node.interpreter is None else str(node_plan.node.interpreter),
            commands=tuple(self._command(node_plan, local) for local in range(len(node_plan.starts))),
            setup=node_plan.node.setup,
            cwds=tuple(start.cwd for start in node_plan.starts),
            cores=tuple(start.cores for start in node_plan.starts),
            env=tuple(_list_node_env(self._env, place)),
        )

    def _command(self, node_plan: NodePlan, local: int) -> str:
        """The command as it could be typed on the node; the local rank option uses its variable."""
        words = tuple(self._hide.hide_words(_strip_setup(node_plan, node_plan.starts[local])))
        option = self._plan.program.local_rank
        if option and f"{option}={local}" in words:
            place = words.index(f"{option}={local}")
            return " ".join(
                [_quote_command(words[:place]), f"{option}=$LOCAL_RANK", _quote_command(words[place + 1 :])]
            ).rstrip()
        return _quote_command(words)

    def _group(self, group: list[int]) -> Iterator[Text]:
        parts = [self._plan.parts[place] for place in group]
        shape = self._shape(group[0], parts[0])
        ranks = fold_ranks(start.rank or 0 for part in parts for start in part.starts)
        each = len(parts[0].starts)
        head = Text(fold_names(part.node.name for part in parts), style="bold", no_wrap=True, overflow="ignore")
        count = f"{format_count(len(parts), 'node')} with {format_count(each, 'rank')} each: " if len(parts) > 1 else ""
        yield head.append(f"  {count}rank{'s' * (ranks != str(parts[0].starts[0].rank))} {ranks}", style="not bold")
        for where, remark in _group_values(shape.cwds):
            yield _render_line("  in     ", (where and self._hide(where)) or "the login directory", remark=remark)
        for line in shape.setup:
            yield _render_line("  setup  ", self._hide(line), style="green")
        if shape.interpreter:
            yield _render_line("  python ", shape.interpreter)
        for label, text in shape.container:
            yield _render_line(f"  {label:6} ", self._hide(text))
        for command, remark in _group_values(shape.commands):
            yield _render_line("  runs   ", command, style="green", remark=remark)
        for cores, remark in _group_values(shape.cores):
            if cores:
                yield _render_line("  cores  ", fold_ranks(cores), remark=remark)
        for name, values in shape.env:
            for value, remark in _group_values(values):
                yield _render_line(
                    "  env    ", f"{name} is not set" if value is None else _format_variable(name, value), remark=remark
                )

    def _environment(self, width: int) -> Iterator[Text]:
        env = self._env
        ours = _list_own_variables(self._plan)
        yield Text("environment of each rank", style="bold")
        if env.counted:
            yield from wrap_labelled(Text("  per rank ", style="dim"), _format_variables(env.counted), width)
        same = {name: value for name, value in env.same.items() if name in ours}
        if not self._plan.master.port:
            same.pop("MASTER_PORT", None)
        if same:
            yield from wrap_labelled(Text("  common   ", style="dim"), _format_variables(same), width)
        if TRAINING in env.same:
            settings = f"{TRAINING}, {len(env.same[TRAINING]):,} characters; its settings: aboard train --print-config"
            yield _render_line("  training ", settings)
        label = "  yours    "
        for name, value in env.same.items():
            if name not in {*ours, TRAINING}:
                yield _render_line(label, _format_variable(name, value))
                label = " " * len(label)


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """Nodes with equal shapes are shown together."""

    container: tuple[tuple[str, str], ...]
    interpreter: str
    commands: tuple[str, ...]
    setup: tuple[str, ...]
    cwds: tuple[str | None, ...]
    cores: tuple[tuple[int, ...], ...]
    env: tuple[tuple[str, tuple[str | None, ...]], ...]


def _list_own_variables(plan: Plan) -> frozenset[str]:
    """The variables that Aboard may set itself; all others are the user's."""
    layout = RankLayout(rank=0, world=2, local=0, local_world=1, group=0, groups=2)
    rank_env = build_node_env(Node(name="any", picked=(0,)), NodeResources(address="", interface="any"), layout, None)
    chosen = [part.node.interpreter.env for part in plan.parts if part.node.interpreter is not None]
    own = (build_torchrun_env(layout, plan.master, plan.run), build_task_env(layout))
    return frozenset(rank_env).union(*own, *chosen)


def _strip_setup(node_plan: NodePlan, start: Start) -> tuple[str, ...]:
    """The argv without the setup wrapper; setup lines are shown separately."""
    bare = start.argv[SETUP_WORDS:]
    return bare if node_plan.node.setup and prepend_setup(node_plan.node, bare) == start.argv else start.argv


def _describe_container(container: Container | None) -> tuple[tuple[str, str], ...]:
    """What is known before the start, by label; see CONTAINER for the rest."""
    if container is None:
        return ()
    workdir = f", in {container.workdir}" if container.workdir else ""
    entry = ", through its entry point" if container.entry == "run" else ""
    lines = [("inside", f"{container.runtime}, image {container.image}{entry}{workdir}")]
    lines += [("bind", bind) for bind in container.binds]
    lines += [("option", option) for option in container.options]
    return tuple(lines)


@lru_cache(maxsize=64)
def _quote_command(words: tuple[str, ...]) -> str:
    """Quoted for every login shell; printable words with non-ASCII letters are quoted for sh, to stay readable."""
    if all(map(str.isprintable, words)) and not all(map(str.isascii, words)):
        return shlex.join(words)
    return join_argv(words)


def _list_node_env(environment: PlanEnvironment, place: int) -> Iterator[tuple[str, tuple[str | None, ...]]]:
    for name, nodes in environment.of_node.items():
        if nodes[place] is not None:
            yield name, (nodes[place],)
    for name, rows in environment.of_rank.items():
        yield name, rows[place]


def _group_values(values: tuple[_Value, ...]) -> Iterator[tuple[_Value, str]]:
    """Each value once, with its local ranks if they differ."""
    groups: dict[_Value, list[int]] = {}
    for local, value in enumerate(values):
        groups.setdefault(value, []).append(local)
    for value, locals_ in groups.items():
        yield value, f"local rank {fold_ranks(locals_)}" if len(groups) > 1 else ""


def _format_variable(name: str, value: str) -> str:
    return f"{name}={quote_word(value) if value.isascii() and value.isprintable() else escape_text(value, ANY_LENGTH)}"


def _format_variables(env: Mapping[str, str]) -> str:
    return " ".join(_format_variable(name, value) for name, value in env.items())


def _render_line(label: str, text: str, *, style: str = "", remark: str = "") -> Text:
    line = Text.assemble((label, "dim"), (escape_text(text, ANY_LENGTH), style), no_wrap=True, overflow="ignore")
    return line.append(f"    # {remark}", style="dim") if remark else line
