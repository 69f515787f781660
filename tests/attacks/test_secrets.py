"""Attacks on the user's secrets by the files of a cloned repository: where a token is sent, and what a screen shows."""

import os
import select
import socket
import subprocess
import sys
from pathlib import Path

from deadlines import slowness

RANK = """
import os, sys
from pathlib import Path
from aboard.core.plan.training_settings import Training
from aboard.train.trackers.sender_process import TrackerSenders
from aboard.train.trackers.tracked_run import describe_run
folder = Path(sys.argv[1])
describe_run(Training(model="m", data=(), output_dir=str(folder), max_length=8), "r1", os.environ).save(folder)
senders = TrackerSenders(folder, ["wandb"])
sys.stdin.read()
"""


def test_settings_of_wandb_in_the_working_directory_name_no_server(tmp_path: Path) -> None:
    """The key goes to the server of the user's own settings, not to that of ./wandb/settings or ./.wandb/settings."""
    with socket.create_server(("127.0.0.1", 0)) as mine, socket.create_server(("127.0.0.1", 0)) as theirs:
        for place, server in (("home/.config/wandb", mine), ("repository/wandb", theirs), ("out/wandb", theirs)):
            (tmp_path / place).mkdir(parents=True)
            address = f"http://127.0.0.1:{server.getsockname()[1]}"
            (tmp_path / place / "settings").write_text(f"[default]\nbase_url = {address}\n")
        env = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "XDG_"))}
        env |= {"HOME": str(tmp_path / "home"), "WANDB_API_KEY": "0123456789" * 4}
        command = [sys.executable, "-P", "-c", RANK, str(tmp_path / "out")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=env, cwd=tmp_path / "repository") as rank:
            reached, _, _ = select.select([mine, theirs], [], [], 60 * slowness())
            rank.kill()
        assert reached == [mine]
