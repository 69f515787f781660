"""Messages about real runs reach a web hook on another host: from the head over ssh, from the batch host in Slurm."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from deadlines import slowness, wait_until
from launching import PYTHON, build_sandbox

from aboard.sandbox import Sandbox

pytestmark = [pytest.mark.ground, pytest.mark.nightly, pytest.mark.xdist_group("slurm")]

FOLDER = "/shared/job"
PORT = 8099
# Writes who posted what into the shared directory.
RECEIVER = """
import http.server, json, sys
class Answers(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open("posts.jsonl", "a") as file:
            file.write(json.dumps([self.client_address[0], self.path, body]) + "\\n")
        self.send_response(204)
        self.end_headers()
http.server.HTTPServer(("", int(sys.argv[1])), Answers).serve_forever()
"""
JOB = """
import os, signal, time
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(2)
"""


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    """Two nodes with Slurm; the receiver is on the second."""
    with build_sandbox("notify", nodes=2, slots=1, slurm=True) as made:
        put(made, "receiver.py", RECEIVER)
        put(made, "job.py", JOB)
        receiver = made.host("n2").popen([PYTHON, "receiver.py", str(PORT)], cwd=FOLDER)
        try:
            yield made
        finally:
            receiver.kill()
            receiver.wait()


def put(box: Sandbox, name: str, text: str, mode: str = "644") -> None:
    script = f"mkdir -p {FOLDER} && cat > {FOLDER}/{name} && chmod {mode} {FOLDER}/{name}"
    assert box.head.run(["sh", "-c", script], input=text).returncode == 0


def aboard(box: Sandbox, *words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    done = box.head.run(["aboard", *words], cwd=FOLDER, env=env, timeout=120 * slowness())
    return done.returncode, done.stdout + done.stderr


def read_posts(box: Sandbox, path: str) -> list[tuple[str, dict[str, Any]]]:
    """The sender and the body of what came to this path."""
    lines = box.head.run(["cat", f"{FOLDER}/posts.jsonl"]).stdout.splitlines()
    return [(sender, body) for sender, to, body in map(json.loads, lines) if to == path]


def test_a_restart_over_ssh_is_told_by_the_head(box: Sandbox) -> None:
    """The address is in a private file; the failure is told with its cure, and then the end."""
    put(box, "hook", f"http://{box.host('n2').address}:{PORT}/ssh\n", mode="600")
    nodes = f"cluster: {{nodes: 'n[1-2] slots=1', python: {PYTHON}}}\n"
    put(box, "ssh.yaml", f"{nodes}notify: {{webhook: {{file: hook}}}}\n")
    code, said = aboard(box, "launch", "ssh.yaml", "--restarts", "1", "--", "job.py")
    assert code == 0, said
    posts = read_posts(box, "/ssh")
    assert [(body["event"], body["code"], body["nodes"]) for _sender, body in posts] == [
        ("failure", "run-killed", ["n2"]),
        ("end", None, []),
    ]
    assert {sender for sender, _body in posts} == {box.head.address}
    assert "warning" not in said


def test_a_slurm_job_tells_from_its_batch_host(box: Sandbox) -> None:
    """The variable travels with sbatch, and its value is neither in the script nor in the record."""
    put(box, "slurm.yaml", f"cluster: {{slurm: {{nodes: 2}}, python: {PYTHON}}}\nnotify: {{webhook: {{env: HOOK}}}}\n")
    hook = {"HOOK": f"http://{box.host('n2').address}:{PORT}/slurm"}
    code, said = aboard(box, "launch", "slurm.yaml", "--", "job.py", env=hook)
    assert code == 137, said
    wait_until(lambda: read_posts(box, "/slurm"), 20, said)
    ((sender, body),) = read_posts(box, "/slurm")
    assert (body["event"], body["ended"], body["code"], body["nodes"]) == ("failure", True, "run-killed", ["n2"])
    assert sender == box.host("n1").address
    found = box.head.run(["sh", "-c", f"grep -rl {PORT}/slurm ~/.local/state/aboard"]).stdout
    assert found == ""


def test_a_check_names_the_machine_that_cannot_reach_the_receiver(box: Sandbox) -> None:
    """In a batch script, that is the batch host."""
    put(box, "away.yaml", f"cluster: {{python: {PYTHON}}}\nnotify: {{webhook: {{env: HOOK}}}}\n")
    script = f"#!/bin/sh\n#SBATCH --nodes=2\n#SBATCH --output={FOLDER}/check.txt\naboard check away.yaml --quick\n"
    put(box, "check.sh", script)
    hook = {"HOOK": f"http://{box.host('n2').address}:{PORT + 1}/away"}
    done = box.head.run(["sbatch", "--wait", "check.sh"], cwd=FOLDER, env=hook, timeout=120 * slowness())
    said = box.head.run(["cat", f"{FOLDER}/check.txt"]).stdout
    assert "warn notify-unsent n1 seen: notify.webhook from n1: Connection refused" in said, said + done.stderr
