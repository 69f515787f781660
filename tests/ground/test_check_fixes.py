"""What `aboard check` says is to be typed, typed as it stands: the next check is green. The bench has all cases."""

import pytest

from aboard.sandbox import Sandbox
from check_cases import CASES, Case
from one_case import try_case
from typed_fixes import type_fix, write_config

pytestmark = pytest.mark.ground

# Slow to be named, by their nature: the bench has them.
_SLOW = ("reach-timeout", "network-dropped", "network-loss", "network-slow", "storage-dead-mount", "network-mtu")
QUICK = [case for case in CASES if not case.by_hand and not any(code in _SLOW for code, _ in case.named)]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.describe(), marks=[] if number % 3 == 0 else pytest.mark.nightly)
        for number, case in enumerate(QUICK[::3])
    ],
)
def test_the_fix_mends_it(case: Case, box_name: str) -> None:
    """The right code on the right nodes stands first, and its lines, typed where they say, make the check green."""
    outcome = try_case(case, box_name)
    assert outcome.missed == []
    assert not outcome.unfolded
    assert outcome.typed, outcome.findings
    assert outcome.left == [], outcome.typed


def test_lines_are_typed_where_they_say(box: Sandbox) -> None:
    """On the nodes that are named or else here, by root where sudo is; advice isn't typed; nothing is rewritten."""
    fix = (
        "uname -n; id -u    # on n[2-3]; why\n"
        "uname -n    # here; why\n"
        "echo '$HOME' | sudo cat; sudo id -u\n"
        "# for good: sudo reboot"
    )
    said = [(typed.where, typed.output) for typed in type_fix(box, fix)]
    crew = str(box.crew_id)
    assert said == [("n2", f"n2\n{crew}"), ("n3", f"n3\n{crew}"), ("head", "head"), ("head", "$HOME\n0")]


def test_settings_are_typed_where_they_say(box_name: str) -> None:
    """Below `cluster:` or a node's own name, in place of what stood there, and nowhere else."""
    with Sandbox.up(f"{box_name}-yaml", nodes=1) as small:
        text = "cluster:\n  nodes:\n    - name: n1\n      slots: 2\n    - name: n2\nrun: {}\n"
        small.head.run(["sh", "-c", "cat > aboard.yaml"], input=text)
        fix = "slots: 4    # in aboard.yaml, for n[1-2]\nenv: {A: b}    # in aboard.yaml, under cluster:; why"
        assert [typed.where for typed in type_fix(small, fix)] == ["aboard.yaml"] * 2
        write_config(small.head, "under cluster:", "env: {A: c}")
        nodes = "  nodes:\n    - name: n1\n      slots: 4\n    - name: n2\n      slots: 4\n"
        assert small.head.run(["cat", "aboard.yaml"]).stdout == f"cluster:\n  env: {{A: c}}\n{nodes}run: {{}}\n"


def test_systemctl_manages_sshd_and_nothing_else(box_name: str) -> None:
    """A practice host has no systemd: its sshd can be stopped, started and reloaded as users know it."""
    with Sandbox.up(box_name, nodes=1) as small:
        (n1,) = small.nodes

        def answers(*words: str) -> tuple[int, str]:
            done = n1.run(["systemctl", *words], root=True)
            return done.returncode, done.stdout.strip()

        assert answers("is-active", "ssh") == (0, "active")
        for verb in ("restart", "reload", "start"):
            assert answers(verb, "ssh") == (0, "")
            assert small.head.run(["ssh", "n1", "true"]).returncode == 0
        assert answers("stop", "sshd.service") == (0, "")
        assert answers("is-active", "ssh") == (3, "inactive")
        assert "refused" in small.head.run(["ssh", "n1", "true"]).stderr
        assert answers("start", "ssh")[0] == 0
        assert answers("restart", "chrony")[0] == 1
        assert answers("mask", "ssh")[0] == 1
