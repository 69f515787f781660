"""`aboard sync --env` on real hosts: ranks run in the head's environment, and a node in the way stops nobody."""

import re
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pytest
from small_wheels import SITE, make_wheel

from aboard.sandbox import Host, Sandbox

pytestmark = pytest.mark.ground

ACTIVE = {"VIRTUAL_ENV": "/home/crew/venv"}


def ok(host: Host, *argv: str, **options: dict[str, str]) -> str:
    done = host.run(argv, timeout=120, **options)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_bare_nodes_get_the_heads_environment(make_box: Callable[..., Sandbox], tmp_path: Path) -> None:
    """A package of the head's environment is imported on nodes that had none; one that is in the way is named."""
    box = make_box(nodes=2, slots=1, bare=True)
    ok(box.head, "aboard", "init", "--yes")
    ok(box.head, "aboard", "trust", "--identity", "admin.pem", "--fingerprints", "fingerprints")
    wheel = make_wheel(tmp_path, "tiny", "1.0", {"tiny/__init__.py": "value = 7\n"})
    python = f"{sys.base_prefix}/bin/python3"
    ok(box.head, python, "-m", "venv", "--without-pip", "--system-site-packages", "venv")
    content = b64encode(wheel.read_bytes()).decode()
    ok(box.head, "sh", "-c", f"echo {content} | base64 -d > t.whl && {python} -m zipfile -e t.whl venv/{SITE}")
    ok(box.hosts["n2"], "sh", "-c", "mkdir venv && touch venv/mine")
    blocked = box.head.run(["aboard", "sync", "--env"], env=ACTIVE, timeout=120)
    assert blocked.returncode == 1
    assert "block env-path n2 seen: n2: /home/crew/venv exists, but is not a virtual environment" in blocked.stdout
    assert "fine n1: created, 1 package installed" in blocked.stdout
    ok(box.hosts["n2"], "mv", "venv", "venv.old")
    done = ok(box.head, "aboard", "sync", "--env", env=ACTIVE)
    assert "fine n1: unchanged" in done
    assert "fine n2: created, 1 package installed" in done
    code = "import sys, tiny; print(sys.prefix, tiny.value)"
    launched = ok(box.head, "aboard", "launch", "--", "python", "-c", code, env=ACTIVE)
    assert launched.count("/home/crew/venv 7") >= 1
    assert "done: finished: 2 ranks" in launched
    ok(box.hosts["n1"], "rm", f"venv/{SITE}/tiny/__init__.py")
    assert "fine n1: updated, 1 package installed" in ok(box.head, "aboard", "sync", "--env", env=ACTIVE)
    # Where the user of the nodes may not write, it goes to their home, and ranks use it there.
    box.head.run(["cp", "-a", "/home/crew/venv", "/opt/ours"], root=True).check_returncode()
    ours = {"VIRTUAL_ENV": "/opt/ours"}
    place = re.findall(
        r"the environment goes to ~(\S+) there", box.head.run(["aboard", "sync", "--env"], env=ours).stderr
    )
    assert f"/home/crew{place[0]} 7" in ok(box.head, "aboard", "launch", "--", "python", "-c", code, env=ours)
