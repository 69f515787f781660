"""Attacks by a cloned repository: the files that a command finds in its working directory."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from deadlines import slowness, within
from launching import Launches
from other_users import ATTACKER

from aboard.config.cluster_loader import guess_nodes, load_cluster
from aboard.config.input_files import MAX_BYTES, read_text
from aboard.config.known_nodes import list_ssh_hosts
from aboard.config.slurm_request import load_slurm_settings
from aboard.config.this_machine import inspect_this_machine
from aboard.config.yaml_tree import MAX_CHARACTERS, parse_tree
from aboard.core.cluster.hostfile import parse_hostfile
from aboard.core.plan.deepspeed_env_file import parse_env_file
from aboard.diagnoses import NO_FIX, AboardError, InputError
from aboard.sandbox import Sandbox

SECONDS = 120
EVERY_WAY = {
    "python": "python: {evil}",
    "setup": "setup: ['{evil}']",
    "preload": "env: {{LD_PRELOAD: {evil}}}",
    "python-path": "env: {{PYTHONPATH: {here}}}",
    "path": "env: {{PATH: {here}}}",
    "nccl-plugin": "env: {{NCCL_NET_PLUGIN: {evil}}}",
    "container": "container: {{runtime: docker, image: evil}}",
    "node": "nodes: [{{name: localhost, python: {evil}}}]",
    "slurm": "slurm: {{nodes: 2, extra: ['--bcast={evil}']}}",
    "log-file": "env: {{TORCH_LOGS: +distributed, TORCH_LOGS_OUT: .ssh/rc}}",
    "temporary-files": "env: {{TMPDIR: {here}}}",
    "tracker": "env: {{DATABRICKS_HOST: 'https://evil.example'}}",
    "rendezvous": "env: {{MASTER_ADDR: evil.example}}",
    "user": "user: other",
    "login": "nodes: [other@localhost]",
    "port": "port: 2222",
    "address": "nodes: [{{name: n1, address: evil.example}}]",
    "fabric": "fabric_address: evil.example",
    "workdir": "workdir: /",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A directory with a program that leaves a mark when it runs."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "evil").write_text(f'#!/bin/sh\ntouch {tmp_path}/mark\nexec {sys.executable} "$@"\n')
    (folder / "evil").chmod(0o755)
    return folder


def write_cluster(repository: Path, line: str, more: str = "") -> None:
    nodes = "" if "nodes:" in line else "  nodes: localhost\n"
    text = line.format(evil=repository / "evil", here=repository)
    (repository / "aboard.yaml").write_text(f"cluster:\n{nodes}  {text}\n{more}")


def type_command(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs `aboard` in the repository with a home of its own, without a terminal."""
    environment = {**os.environ, "HOME": str(repository.parent), "XDG_STATE_HOME": str(repository.parent / "state")}
    # -P: as the installed command, which does not import from the working directory.
    return subprocess.run(
        [sys.executable, "-P", "-m", "aboard", *words],
        cwd=repository,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def assert_refused(repository: Path, *words: str) -> None:
    ran = type_command(repository, *words)
    assert (ran.returncode, "[file-not-allowed]" in ran.stderr) == (3, True), ran.stdout + ran.stderr
    assert "aboard allow" in ran.stderr
    assert not (repository.parent / "mark").exists()


@pytest.mark.parametrize(
    "words", ["check", "launch --dry-run -- true", "launch -- true", "train --dry-run", "sync", "data"]
)
def test_a_repository_that_names_a_program_runs_nothing(repository: Path, words: str) -> None:
    """No command starts what ./aboard.yaml names before `aboard allow`; each says how to allow it."""
    write_cluster(repository, EVERY_WAY["python"], "train: {model: none}\n")
    assert_refused(repository, *words.split())


@pytest.mark.parametrize("way", EVERY_WAY)
def test_every_key_that_is_not_known_to_be_harmless_needs_aboard_allow(
    repository: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs, variables that are not known to be harmless, users, addresses and Slurm options are refused alike."""
    write_cluster(repository, EVERY_WAY[way])
    monkeypatch.chdir(repository)
    monkeypatch.setenv("XDG_STATE_HOME", str(repository.parent))
    here = inspect_this_machine()
    for load in (load_slurm_settings, partial(guess_nodes, here=here), partial(load_cluster, here=here)):
        with pytest.raises(AboardError) as refused:
            load()
        assert refused.value.code == "file-not-allowed"


@pytest.mark.parametrize("words", ["data", "train --dry-run"])
def test_a_repository_cannot_trust_the_code_of_a_model_by_itself(repository: Path, words: str) -> None:
    """`train.trust_remote_code` in a file that was found needs `aboard allow`, also to read data with the tokenizer."""
    (repository / "aboard.yaml").write_text(
        "train: {model: ./model, trust_remote_code: true}\ndata: {files: [rows.jsonl]}\n"
    )
    (repository / "rows.jsonl").write_text('{"text": "hello"}\n')
    assert_refused(repository, *words.split())


@pytest.mark.parametrize(
    ("words", "path"),
    [("data", "../.secret-token"), ("train --dry-run", "~/.netrc")]
    + [("sync", path) for path in ("../.ssh", "link/id_rsa", "/proc/self/cwd/.ssh/rc")],
)
def test_a_repository_cannot_name_files_outside_of_its_directory(repository: Path, words: str, path: str) -> None:
    """Neither as data that is read here, nor as files that `aboard sync` sends to a node, also through a link."""
    (repository.parent / ".ssh").mkdir()
    (repository / "link").symlink_to("../.ssh")
    (repository / "aboard.yaml").write_text(f"data: {{files: [{path}]}}\ntrain: {{model: ./model}}\n")
    assert_refused(repository, *words.split())


def test_a_hostfile_of_the_repository_cannot_name_users(repository: Path) -> None:
    """Neither for a command that reads it through ./aboard.yaml, nor for `aboard init`, which finds it."""
    (repository / "hostfile").write_text("other@localhost slots=1\n")
    ran = type_command(repository, "init")
    assert (ran.returncode, "[init-ask]" in ran.stderr, (repository / "aboard.yaml").exists()) == (3, True, False)
    (repository / "aboard.yaml").write_text("cluster: {hostfile: hostfile}\n")
    assert_refused(repository, "check")


def test_what_the_user_typed_for_init_needs_no_second_consent(repository: Path) -> None:
    """But what a repository wrote into the same file does."""
    type_command(repository, "init", "other@127.0.0.9")
    assert type_command(repository, "check", "--only", "reach").returncode != 3
    (repository / "aboard.yaml").write_text("data: {files: [../.ssh]}\n")
    type_command(repository, "init", "other@127.0.0.9")
    assert_refused(repository, "check")


def test_a_check_imports_no_module_of_the_repository(repository: Path) -> None:
    """A torch.py or json.py in the working directory is not imported by `aboard check`."""
    for name in ("torch", "json", "socket", "numpy", "sitecustomize", "usercustomize"):
        (repository / f"{name}.py").write_text(f"open({str(repository.parent / 'mark')!r}, 'a').write({name!r})\n")
    (repository / "aboard.yaml").write_text(f"cluster: {{nodes: localhost, workdir: {repository}}}\n")
    ran = type_command(repository, "check", "--only", "software", "--only", "collective")
    assert "localhost" in ran.stdout, ran.stderr
    assert not (repository.parent / "mark").exists(), (repository.parent / "mark").read_text()


def test_the_user_allows_a_file_once_and_again_when_its_code_changes(repository: Path) -> None:
    """`aboard allow` prints what it allows; other lines may change, those that name code may not."""
    write_cluster(repository, EVERY_WAY["setup"])
    said = type_command(repository, "allow").stdout
    assert f"aboard.yaml:3:10  cluster.setup: ['{repository}/evil']" in said
    command = ("check", "--only", "reach")
    assert type_command(repository, *command).returncode == 0
    write_cluster(repository, EVERY_WAY["setup"], "train: {model: other}\n")
    assert type_command(repository, *command).returncode == 0
    (repository.parent / "mark").unlink(missing_ok=True)
    write_cluster(repository, EVERY_WAY["setup"].replace("evil}", "evil} more"))
    assert_refused(repository, *command)
    write_cluster(repository, EVERY_WAY["setup"])
    assert str(repository / "aboard.yaml") in type_command(repository, "allow", "--list").stdout
    type_command(repository, "allow", "--remove")
    assert_refused(repository, *command)


def test_a_file_that_the_user_names_needs_no_consent(repository: Path) -> None:
    """As an argument or with --allow-file; and a file with nothing but nodes and training settings never does."""
    write_cluster(repository, EVERY_WAY["setup"])
    for word in ("aboard.yaml", "--allow-file"):
        assert type_command(repository, "check", "--only", "reach", word).returncode == 0
    harmless = f"slots: 2, workdir: {repository}, env: {{NCCL_DEBUG: INFO, OMP_NUM_THREADS: 1}}"
    (repository / "aboard.yaml").write_text(f"cluster: {{nodes: [localhost], {harmless}}}\ntrain: {{model: x}}\n")
    assert type_command(repository, "check", "--only", "reach").returncode == 0


def test_an_allowed_file_is_not_allowed_elsewhere(repository: Path, tmp_path: Path) -> None:
    """The same content in another directory is another file: what it names may differ there."""
    write_cluster(repository, EVERY_WAY["setup"])
    type_command(repository, "allow")
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "aboard.yaml").write_bytes((repository / "aboard.yaml").read_bytes())
    assert_refused(clone, "launch", "--dry-run", "--", "true")


@pytest.mark.parametrize("plant", ["others-write", "another-owner", "symlink"])
def test_nobody_else_can_write_the_record_of_allowed_files(repository: Path, tmp_path: Path, plant: str) -> None:
    """A record in a directory that others can write to, of another owner, or behind a link counts for nothing."""
    write_cluster(repository, EVERY_WAY["setup"])
    type_command(repository, "allow")
    folder = tmp_path / "state/aboard/allowed"
    assert folder.stat().st_mode & 0o777 == 0o700
    (record,) = folder.iterdir()
    assert record.stat().st_mode & 0o777 == 0o600
    if plant == "others-write":
        folder.chmod(0o777)
    elif plant == "another-owner":
        if os.geteuid() != 0:
            pytest.skip("needs root to give a file away")
        os.chown(record, ATTACKER, ATTACKER)
    else:
        record.rename(tmp_path / "planted")
        record.symlink_to(tmp_path / "planted")
    assert_refused(repository, "launch", "--dry-run", "--", "true")


def test_a_hostile_value_can_not_hide_in_the_question(repository: Path) -> None:
    """Control characters are escaped, `aboard allow` prints long values whole, and nothing becomes a command."""
    long = "true; " * 2000 + "evil"
    lines = json.dumps(["\x1b[2K\x1b[1Aharmless", "\u202egnissim", long])
    (repository / "aboard.yaml").write_text(f"cluster: {{nodes: localhost, setup: {lines}}}\n")
    refused = type_command(repository, "check").stderr
    allowed = type_command(repository, "allow").stdout
    for said in (refused, allowed):
        assert "\x1b" not in said
        assert "\u202e" not in said
    assert long not in refused
    assert long in allowed


def test_a_deepspeed_env_of_the_repository_needs_consent(repository: Path) -> None:
    """DeepSpeed reads ./.deepspeed_env by itself; an LD_PRELOAD in it is used only after `aboard allow`."""
    (repository / "hostfile").write_text("localhost slots=1\nn2.invalid slots=1\n")
    (repository / ".deepspeed_env").write_text(f"NCCL_DEBUG=INFO\nLD_PRELOAD={repository}/evil\n")
    pasted = ("launch", "--dry-run", "--json", "--", "deepspeed", "--hostfile", "hostfile", "train.py")
    assert_refused(repository, *pasted)
    assert f"LD_PRELOAD: {repository}/evil" in type_command(repository, "allow").stdout
    assert "file-not-allowed" not in type_command(repository, *pasted).stderr


HUGE = {
    "large": "cluster:\n  nodes:\n" + "".join(f"    - {{name: n{number}, slots: 8}}\n" for number in range(200_000)),
    "laughs": "a: &a [x]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1 or str()}'] * 10)}]\n" for n in range(1, 9)),
    "flow": "a: " + "[" * 100_000,
    "blocks": "".join(f"{' ' * level}a:\n" for level in range(1400)),
    "scalar": "a: '" + "x" * 5_000_000 + "'\n",
    "keys": "".join(f"key{number}: {number}\n" for number in range(400_000)),
    "same-key": "a: 1\n" * 300_000,
    "anchors": "".join(f"a{number}: &a{number} x\n" for number in range(300_000)),
    "quotes": "a: " + "\"'" * 1_000_000,
    "not-text": "a: \0\n" * 300_000,
}


@pytest.mark.parametrize("kind", HUGE)
def test_a_huge_file_is_refused_at_once(kind: str) -> None:
    """Size, nesting, aliases, keys and scalars are bounded: no file takes seconds of computing time."""
    for text in (HUGE[kind], HUGE[kind][:MAX_CHARACTERS]):
        with within(4, clock=time.process_time), pytest.raises(InputError):
            parse_tree(text, file="aboard.yaml")


@pytest.mark.parametrize("line", ["n{} slots=8\n", "A{}=1\n", "Host n{}\n", "=", "[", "n1 slots=8\n"])
def test_a_huge_hostfile_is_refused_or_read_at_once(line: str, tmp_path: Path) -> None:
    """The same for hostfiles, .deepspeed_env and ssh_config, up to the limit of their size."""
    text = "".join(line.format(number) for number in range(MAX_BYTES // len(line)))[:MAX_BYTES]
    (tmp_path / "config").write_text(text)
    for parse in (partial(parse_hostfile, text), partial(parse_env_file, text), partial(list_ssh_hosts, tmp_path)):
        with within(4, clock=time.process_time), suppress(InputError):
            parse()
    (tmp_path / "config").write_text(text + "#" * 100)
    with pytest.raises(InputError, match="is larger than"):
        read_text(str(tmp_path / "config"), fix=NO_FIX)


AGENT = "Host n1 n2\nForwardAgent yes\nForwardX11 yes\nTunnel yes\n"
LOOK = "import os; print('agent', os.environ.get('SSH_AUTH_SOCK'), os.environ.get('DISPLAY'), os.listdir('/tmp'))\n"


@pytest.mark.ground
@pytest.mark.parametrize("way", ["directly", "over a jump host"])
def test_no_node_gets_the_ssh_agent(box: Sandbox, way: str) -> None:
    """With `ForwardAgent yes` and a key in the agent, neither a rank nor a jump host finds a socket of the agent."""
    jump = "" if way == "directly" else "Host n2\nProxyJump n1\n"
    launches = Launches(box, folder="/shared/agent")
    launches.put("look.py", LOOK)
    launches.put("config", AGENT + jump)
    launches.put("watch.sh", "while :; do ls -d /tmp/ssh-* 2>/dev/null >> /shared/agent/sockets; sleep 0.05; done")
    script = """
        mkdir -p -m 700 .ssh; cp /shared/agent/config .ssh/config; rm -f /shared/agent/sockets
        eval "$(ssh-agent)" >/dev/null; rm -f agent-key*
        ssh-keygen -q -t ed25519 -N '' -f agent-key && ssh-add -q agent-key
        cd /shared/agent && aboard launch --check none n2 --set cluster.python=/usr/bin/python3 -- look.py; code=$?
        ssh-agent -k >/dev/null; rm -f ~/.ssh/config; exit $code
    """
    watcher = box.host("n1").popen(["sh", "/shared/agent/watch.sh"])
    try:
        ran = box.head.run(["sh", "-c", script], env={"DISPLAY": ":0"}, timeout=120 * slowness())
    finally:
        watcher.kill()
        watcher.wait()
    assert "agent None None" in ran.stdout, ran.stdout + ran.stderr
    assert "ssh-" not in ran.stdout
    assert box.head.run(["cat", "/shared/agent/sockets"]).stdout == ""


@pytest.mark.ground
def test_a_jump_host_can_not_stand_in_for_a_node(box: Sandbox) -> None:
    """A jump host that answers in place of the node has the wrong host key: ssh ends before anything is sent."""
    launches = Launches(box, folder="/shared/jump")
    # What a hostile n1 would do: connect the head to itself instead of to n2.
    launches.put("config", "Host n2\nProxyCommand ssh -W n1:22 n1\nStrictHostKeyChecking no\nForwardAgent yes\n")
    script = """
        mkdir -p -m 700 .ssh; cp /shared/jump/config .ssh/config
        aboard check --only reach --json n2; rm -f .ssh/config
    """
    said = box.head.run(["sh", "-c", script], timeout=60 * slowness()).stdout
    (finding,) = [each for each in json.loads(said)["findings"] if each["severity"] == "block"]
    assert "key" in finding["code"], finding


@pytest.mark.parametrize("start", [("sbatch",), ("srun", "bash"), ("bash",)])
def test_a_program_that_a_script_names_is_not_run(repository: Path, tmp_path: Path, start: tuple[str, ...]) -> None:
    """`launch --dry-run -- sbatch job.sh` follows the script, and runs no program that it names to see more."""
    write_cluster(repository, "nodes: localhost")
    line = f"{repository}/evil deepy.py train.py a.yml"
    (repository / "job.sh").write_text(f"#!/bin/bash\n#SBATCH -N 1\n{line}\n# torchrun deepspeed\n")
    (repository / "job.sh").chmod(0o755)
    type_command(repository, "launch", "--dry-run", "--", *start, "./job.sh")
    assert not (tmp_path / "mark").exists()
