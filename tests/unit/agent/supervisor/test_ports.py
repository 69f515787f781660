"""A port for rank 0: free when it is given, and kept from others until somebody listens on it."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest
from deadlines import until
from supervisor_runs import Run, held

from aboard.agent.supervisor.port_reservation import PortReservations
from aboard.core.run.run_state import Run as RunState
from aboard.transport.node_session import NodeSession


@pytest.fixture
def ports() -> Iterator[PortReservations]:
    with closing(PortReservations()) as made:
        yield made


def _listening(port: int) -> socket.socket:
    """As TCPStore does it: with SO_REUSEADDR, on all addresses."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("", port))
    made.listen()
    return made


def test_a_store_can_listen_on_it(ports: PortReservations) -> None:
    """It is kept by a socket that doesn't listen, beside which one that does may bind."""
    with _listening(ports.reserve(0, fixed=False)) as store:
        assert store.getsockname()[1] > 0


def test_two_runs_never_get_the_same(ports: PortReservations) -> None:
    """The second is given another one, or told that it can't have this one, before anybody listens."""
    port = ports.reserve(0, fixed=False)
    with closing(PortReservations()) as other:
        assert other.reserve(port, fixed=False) != port
        with pytest.raises(OSError, match=f"port {port} can't be had: Address already in use"):
            other.reserve(port, fixed=True)


def test_a_port_that_somebody_listens_on(ports: PortReservations) -> None:
    """Another one is found, unless this one is wanted."""
    with _listening(0) as taken:
        port = taken.getsockname()[1]
        assert ports.reserve(port, fixed=False) != port
        with pytest.raises(OSError, match="can't be had"):
            ports.reserve(port, fixed=True)


def test_a_port_that_is_let_go_can_be_had_again(ports: PortReservations) -> None:
    """Its name goes with it; also right after connections to it, which linger."""
    port = ports.reserve(0, fixed=False)
    with _listening(port) as store, socket.create_connection(("127.0.0.1", port)) as client:
        near, _ = store.accept()
        near.close()
        assert client.recv(1) == b""
    ports.close()
    assert ports.reserve(port, fixed=True) == port


def test_a_process_of_our_own_that_is_not_the_runs_is_named() -> None:
    """By pid and program: it may be a rank of another launcher, and the user can end it."""
    run = Run()
    listen = "import socket, sys, time; own = socket.create_server(('', int(sys.argv[1]))); time.sleep(60)"

    async def story(hold: NodeSession) -> None:
        port = str(await hold.reserve(0))
        with subprocess.Popen([sys.executable, "-c", listen, port]) as other:  # noqa: ASYNC220 - starts at once
            await until(lambda: "port_taken" in run.kinds())
            other.kill()
        owner = RunState.replay(run.id, run.events).generation.port_owner
        assert f"(pid {other.pid}) of " in str(owner)
        assert str(owner).endswith(f"uid {os.getuid()}")

    held(run, story)
    assert "listening" not in run.kinds()
