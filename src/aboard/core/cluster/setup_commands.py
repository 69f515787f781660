"""The `setup` lines of a node: one way to run them before a program, for ranks and for checks that stand in for them.

They are bash's, since `source venv/bin/activate`, `conda activate` and `module load` are. What they print goes to
stderr: a rank's stdout is its program's own.
"""

import shlex

from aboard.core.cluster.node import Node


def prepend_setup(node: Node, argv: tuple[str, ...]) -> tuple[str, ...]:
    """The argv that runs the node's lines and then becomes `argv`; a line that fails ends it, by number."""
    if not node.setup:
        return argv
    return (
        "bash",
        "-c",
        "\n".join([*map(_build_step, range(1, len(node.setup) + 1), node.setup), 'exec "$@"']),
        "bash",
        *argv,
    )


def strip_setup(argv: tuple[str, ...]) -> tuple[str, ...]:
    """What `after_setup` was given."""
    return argv[4:] if argv[:2] == ("bash", "-c") and argv[3:4] == ("bash",) else argv


def _build_step(number: int, line: str) -> str:
    """Each in an eval: a line that can't be parsed must not take those before it along."""
    message = shlex.quote(f"aboard: line {number} of setup failed: {line}")
    return f"eval {shlex.quote(line)} >&2 || {{ code=$?; printf '%s\\n' {message} >&2; exit $code; }}"
