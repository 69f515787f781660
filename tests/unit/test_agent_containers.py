"""The agent's view of containers from outside: exit codes, clean-up records."""

import pytest

from aboard.agent.container.container_processes import MARK, ContainerProcesses
from aboard.agent.event_loop import EventLoop


@pytest.mark.parametrize(
    ("runtime", "returned", "code"),
    [
        ("podman", 137, -9),
        ("docker", 139, -11),
        ("podman", 128, 128),
        ("podman", 125, 125),
        ("podman", 255, 255),
        ("podman", -9, -9),
        ("apptainer", 137, 137),
    ],
)
def test_exit_code_is_that_of_the_rank(runtime: str, returned: int, code: int) -> None:
    """Docker and Podman add 128 to the signal that killed a rank; Apptainer dies of the same signal itself."""
    containers = ContainerProcesses(EventLoop(), "no-such-run")
    env: dict[str, str] = {}
    containers.add("rank 0", runtime, env)
    assert env[MARK] == "0"
    assert containers.finish("rank 0", returned) == (code, None)
    assert containers.finish("another", returned) == (returned, None)
