"""Attacks by another user of a node or of the head, without any right of ours."""

import pytest
from launching import Launches
from other_users import ATTACKER, VICTIM, run_as

from aboard.sandbox import Sandbox


def test_users_are_other_uids() -> None:
    """The actors of this file are neither root nor each other."""
    uids = [int(run_as(uid, "import os; print(os.getuid())")) for uid in (VICTIM, ATTACKER)]
    assert uids == [VICTIM, ATTACKER]


READ_COMMANDS = """
import glob
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        print(open(path, "rb").read())
    except OSError:
        pass
"""
SECRET = "hf_thisMustNotBeSeen"  # noqa: S105 - it opens nothing


@pytest.mark.ground
def test_a_secret_of_a_detached_run_is_on_no_command_line(box: Sandbox) -> None:
    """Another user who reads /proc/*/cmdline on the head finds no value of --env or --set while the run lasts."""
    launches = Launches(box, folder="/shared/secret")
    launches.put("wait.py", "import os, time; print(len(os.environ['HF_TOKEN'])); time.sleep(600)\n")
    words = (
        "--env",
        f"WANDB_API_KEY={SECRET}",
        f"--env=OTHER_TOKEN={SECRET}",
        "--set",
        f"cluster.env.HF_TOKEN={SECRET}",
    )
    started = launches.aboard("launch", "--detach", "--check", "none", *words, "--", "wait.py")
    run = launches.newest()
    try:
        assert started.returncode == 0, started.stdout + started.stderr
        said = run_as(ATTACKER, READ_COMMANDS)
        assert "wait.py" in said
        assert SECRET not in said
    finally:
        launches.aboard("stop", run)
