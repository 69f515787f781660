"""Commands for a person to type on the head that run something on a node, in its container or as its ranks do."""

import re
from collections.abc import Iterable, Sequence

from aboard.core.cluster.container import Container
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.slurm.job_nodes import COMPONENT_OPTION
from aboard.core.text.input_text import format_count
from aboard.core.text.shell_quoting import quote_typed_words, quote_word
from aboard.diagnoses import Shell, chain_commands, format_shell, join_lines


def format_node_command(node: Node, command: Shell) -> Shell:
    """The command line that runs a shell command on the node from the head."""
    if node.transport is TransportKind.SLURM:
        return format_srun_command([node], command)
    if node.transport is TransportKind.LOCAL:
        return command
    target = f"{node.user}@{node.target}" if node.user else node.target
    # The node's login shell is unknown, so this quotes for any of them.
    there = Shell(quote_word(command))
    if node.port is None:
        return format_shell("ssh {target} {there:shell}", target=target, there=there)
    return format_shell("ssh -p {port} {target} {there:shell}", port=node.port, target=target, there=there)


def format_srun_command(nodes: Sequence[Node], command: Shell) -> Shell:
    """The command line that runs a shell command on nodes of one component of the job, from a shell of the job."""
    gpus = min(map(_count_step_gpus, nodes))
    # With the job's variables of a shell, Slurm refuses some steps that do not say in this way how many GPUs they need.
    options = quote_typed_words(["--overlap", *find_component(nodes[0]), *([f"--gpus={gpus}"] if gpus else [])])
    if len(nodes) == 1:
        return format_shell(
            "srun {options:shell} -N1 -n1 -w {name} bash -c {command}",
            options=options,
            name=nodes[0].name,
            command=command,
        )
    return format_shell(
        'for node in {names:words}; do srun {options:shell} -N1 -n1 -w "$node" bash -c {command}; done',
        names=[node.name for node in nodes],
        options=options,
        command=command,
    )


def find_component(node: Node) -> tuple[str, ...]:
    """The option of srun for the node's component of a heterogeneous job, if it is one."""
    return tuple(option for option in node.step_options if option.startswith(COMPONENT_OPTION))


def _count_step_gpus(node: Node) -> int:
    """The GPUs that the agent's step has on the node."""
    counts = [found[1] for option in node.step_options if (found := re.fullmatch("--g.*[:=]([0-9]+)", option))]
    return int(counts[0]) if counts else 0


def format_python_command(node: Node, words: Shell, *before: Shell) -> Shell:
    """The command line that runs the ranks' Python from the head, after the node's `setup` lines and `before`."""
    run = format_shell("{python} {words:shell}", python=node.rank_python, words=words)
    return format_node_command(node, chain_commands(*before, *get_setup_lines(node), enter_container(node, run)))


def enter_container(node: Node, command: Shell) -> Shell:
    """The command line that runs a command in the node's container, if it has one."""
    if node.container is None:
        return command
    return format_shell(
        "{entry:shell} {command:shell}", entry=format_container_entry(node, node.container), command=command
    )


def format_container_entry(node: Node, container: Container) -> Shell:
    """The words before a program that run it in the node's container; Aboard's own command has further binds."""
    binds = [*container.binds, *([node.workdir] if node.workdir and container.workdir is None else [])]
    workdir = container.workdir or node.workdir
    if container.is_apptainer:
        words = ["exec", *({"nvidia": ["--nv"], "rocm": ["--rocm"]}.get(container.gpus, []))]
    else:
        words = ["run", "--rm", "--network=host", "--ipc=host"]
        binds = [bind if ":" in bind else f"{bind}:{bind}" for bind in binds]
    for bind in binds:
        words += ["--bind" if container.is_apptainer else "--volume", bind]
    words += ["--pwd" if container.is_apptainer else "--workdir", workdir] if workdir else []
    return format_shell(
        "{runtime} {options:shell} {image}",
        runtime=container.runtime,
        options=quote_typed_words([*words, *container.options]),
        image=container.image,
    )


def format_image_copy(source: Node, target: Node, *, as_root: bool = False) -> Shell:
    """The command line that copies the container's image from a node to another, through this machine."""
    if source.container is None:
        raise ValueError(f"{source.name} has no container")
    image, runtime = source.container.image, source.container.runtime
    if source.container.is_apptainer:
        read = format_shell("cat {image}", image=image)
        # Ranks that still use the old file keep it.
        text = "sudo tee {new} >/dev/null && sudo mv {new} {image}" if as_root else "cat > {new} && mv {new} {image}"
        write = format_shell(text, new=f"{image}.new", image=image)
    else:
        read = format_shell("{runtime} save {image}", runtime=runtime, image=image)
        write = format_shell("{runtime} load", runtime=runtime)
    return format_shell(
        "{read:shell} | {write:shell}",
        read=format_node_command(source, read),
        write=format_node_command(target, write),
    )


def get_setup_lines(node: Node) -> list[Shell]:
    """The node's `setup`: shell that the user wrote."""
    return [Shell(line) for line in node.setup]


def join_command_lines(lines: Iterable[Shell], more: int = 0) -> Shell:
    """The lines, with a comment for the number of further nodes that need the same."""
    rest = [Shell(f"# and the same for {format_count(more, 'more node')}")] if more > 0 else []
    return join_lines(*lines, *rest)
