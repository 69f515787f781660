"""`aboard init` on real hosts: what it finds there, and where it finds nothing yet."""

from collections.abc import Callable

import pytest
from json_documents import read_document

from aboard.sandbox import Sandbox

pytestmark = pytest.mark.ground


def test_init_says_what_nodes_have_and_what_comes_next(make_box: Callable[..., Sandbox]) -> None:
    """The second network is suggested, a shared directory needs no sync, and the check reads the file."""
    box = make_box(nodes=2, fabric=True)
    done = box.head.run(["aboard", "init"], cwd="/shared", timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "Nodes from ~/hostfile: n[1-2]"
    assert "/shared is shared with this machine" in lines
    assert lines[-1].startswith("Next: aboard check ")
    text = box.head.run(["cat", "/shared/aboard.yaml"]).stdout
    assert '- "n[1-2] slots=2"' in text
    assert "# env: {NCCL_SOCKET_IFNAME: eth1, GLOO_SOCKET_IFNAME: eth1}  # train over 10.78.0.0/16" in text
    assert box.head.run(["ls", "-A", "/shared"]).stdout.split() == ["aboard.yaml"]
    again = box.head.run(["aboard", "init", "--json"], cwd="/shared", timeout=120)
    kept = read_document("init", again.stdout)
    assert (kept["action"], kept["next"], kept["cluster"]["fabric"]["interface"]) == ("keep", "aboard check", "eth1")
    home = box.head.run(["aboard", "init"], timeout=120).stdout
    assert "/home/crew is not shared with n[1-2]" in home
    # A sync would refuse the home, which has the user's keys.
    assert home.splitlines()[-1].startswith("Next: aboard check ")
    box.head.run(["mkdir", "project"])
    private = box.head.run(["aboard", "init"], cwd="/home/crew/project", timeout=120).stdout
    assert "/home/crew/project is not shared with n[1-2]" in private
    assert private.splitlines()[-1].startswith("Next: aboard sync ")
    assert "2 of 2 nodes reached" in box.head.run(["aboard", "check", "--only", "reach"], timeout=120).stdout


def test_init_works_before_any_login_is_possible(make_box: Callable[..., Sandbox]) -> None:
    """On bare machines the nodes are written with their slots, and the next command is the one that lets us in."""
    box = make_box(nodes=2, bare=True)
    done = box.head.run(["aboard", "init", "--yes"], timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Nodes from hostfile: n[1-2]",
        "n[1-2]: not reached: host key unknown",
        "Wrote aboard.yaml with 2 nodes.",
        "Next: aboard trust    # lets you log in to n[1-2]",
    ]
    written = box.head.run(["cat", "aboard.yaml"]).stdout
    assert '- "n[1-2] slots=2"  # aboard init did not reach it: host key unknown' in written
