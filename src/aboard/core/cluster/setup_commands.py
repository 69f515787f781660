"""Runs a node's `setup` lines before a program, the same way for ranks and for checks that simulate them.

bash runs them, since `source venv/bin/activate`, `conda activate` and `module load` need it. Their output goes to
stderr: stdout belongs to the rank's program.
"""

import shlex

from aboard.core.cluster.node import Node


def prepend_setup(node: Node, argv: tuple[str, ...]) -> tuple[str, ...]:
    """The argv that runs the node's setup lines, then execs `argv`; a failing line stops it and is named by number."""
    return (*build_setup_words(node), *argv)


def build_setup_words(node: Node) -> tuple[str, ...]:
    """The words before a program that run the node's setup lines; none if there are no lines."""
    if not node.setup:
        return ()
    return (
        "bash",
        "-c",
        "\n".join([*map(_build_step, range(1, len(node.setup) + 1), node.setup), 'exec "$@"']),
        "bash",
    )


def strip_setup(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Undoes `prepend_setup`."""
    return argv[4:] if argv[:2] == ("bash", "-c") and argv[3:4] == ("bash",) else argv


def _build_step(number: int, line: str) -> str:
    """Wraps each line in an eval, so that a syntax error doesn't stop the lines before it."""
    message = shlex.quote(f"aboard: line {number} of setup failed: {line}")
    return f"eval {shlex.quote(line)} >&2 || {{ code=$?; printf '%s\\n' {message} >&2; exit $code; }}"
