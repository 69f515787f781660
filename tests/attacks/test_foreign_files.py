"""Attacks by files that have the name of a text file and are something else: links, pipes, devices, terabytes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from deadlines import slowness, within

from aboard.commands.init.write_config import choose_output_action
from aboard.commands.sync.trees.source_tree import scan_code
from aboard.commands.train import tracker_inputs
from aboard.commands.train.fetch_model import read_model_facts
from aboard.commands.train.tracker_inputs import read_git_state
from aboard.config import input_files
from aboard.config.accelerate_config import HeadFiles
from aboard.config.allowed_files import FOUND_FILES, list_settings_to_allow
from aboard.config.cluster_loader import guess_nodes, load_cluster
from aboard.config.input_files import read_text
from aboard.config.known_nodes import find_nodes
from aboard.config.this_machine import inspect_this_machine
from aboard.diagnoses import NO_FIX, AboardError, InputError
from aboard.foreign_files import ForeignFileError, find_link_target
from aboard.sandbox.namespaces.helper_program import build_helper_argv, build_helper_environment, write_spec_file
from aboard.trainer.checkpoint.checkpoint_folder import read_marker
from aboard.trainer.checkpoint.commit_marker import MarkerError
from aboard.trainer.data.intake.model_code import find_code_error
from aboard.trainer.data.intake.source_chunks import SourceSpec, list_source_chunks
from aboard.trainer.data.tokens.tokenizer_parts import load_vocabulary
from aboard.trainer.model.export import _copy_files
from aboard.trainer.settings.adapter_files import WEIGHTS, read_adapter_config
from aboard.trainer.weights.model_files import identify_weights

NETRC = "machine example.org login me password hunter2"
HERE = inspect_this_machine()
# Which file is replaced, and what reads it.
READERS: dict[str, Callable[[], object]] = {
    "aboard.yaml": partial(load_cluster, here=HERE),
    "hosts": partial(load_cluster, here=HERE),
    "hostfile": lambda: find_nodes((), None, home=Path("none")),
    ".deepspeed_env": lambda: HeadFiles().read(".deepspeed_env"),
    ".gitignore": lambda: scan_code(Path.cwd(), "x"),
    "config.json": lambda: (find_code_error(Path.cwd()), read_model_facts(Path.cwd())),
    "model.safetensors.index.json": lambda: identify_weights(Path.cwd()),
    "model.safetensors": lambda: identify_weights(Path.cwd()),
    "adapter_config.json": lambda: read_adapter_config(Path.cwd()),
    "manifest.json": lambda: read_marker(Path.cwd()),
    "rows.arrow": lambda: list_source_chunks(SourceSpec(path="rows.arrow")),
    "rows.jsonl.gz": lambda: list_source_chunks(SourceSpec(path="rows.jsonl.gz")),
}
KINDS = ("pipe", "stdin", "zeros", "terminal", "secret", "terabyte", "socket-of-git")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a secret beside it; files that nobody replaces are harmless."""
    folder = tmp_path / "clone"
    (folder / ".git").mkdir(parents=True)
    (tmp_path / ".netrc").write_text(NETRC)
    (folder / WEIGHTS).write_bytes(b"")
    monkeypatch.chdir(folder)
    return folder


def replace_file(path: Path, kind: str) -> None:
    """Puts something else in the file's place."""
    links = {"stdin": "/dev/stdin", "zeros": "/dev/zero", "terminal": "/dev/ptmx", "secret": "../.netrc"}
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "terabyte":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif kind in links:
        path.symlink_to(links[kind])
    else:
        path.symlink_to("/proc/self/fd/0")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_a_file_that_nobody_named_is_read_only_if_it_is_one(clone: Path, name: str, kind: str) -> None:
    """Neither a pipe nor a device, a terabyte or a link to a secret is waited for, read on, or printed."""
    if name == "hosts":
        (clone / "aboard.yaml").write_text("cluster: {hostfile: hosts}\n")
    replace_file(clone / name, kind)
    said = ""
    with within(15):
        try:
            READERS[name]()
        except (AboardError, MarkerError) as error:
            said = str(error)
    assert "hunter2" not in said
    assert "machine" not in said
    # git reads no link of this name, weights may be large, and rows that can't be read are reported with all others.
    silent = name == ".gitignore" and kind != "terabyte"
    assert said or silent or name.startswith(("model.safetensors", "rows"))


def test_a_command_does_not_wait_for_a_file_that_it_found(clone: Path) -> None:
    """`aboard check` says at once that ./aboard.yaml leads to its own input, which nobody closes."""
    (clone / "aboard.yaml").symlink_to("/dev/stdin")
    command = [sys.executable, "-P", "-m", "aboard", "check"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert process.wait(60 * slowness()) == 3
        finally:
            process.kill()
        said = process.stderr.read()
    assert "outside of its directory" in said


def test_a_pipe_that_the_user_named_is_read_but_not_waited_for_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--hostfile <(…)` works, and a pipe without a writer is an error that names it."""
    read_end, write_end = os.pipe()
    os.write(write_end, b"n1 slots=8\n")
    os.close(write_end)
    assert read_text(f"/dev/fd/{read_end}", fix=NO_FIX) == "n1 slots=8\n"
    os.close(read_end)
    monkeypatch.setattr(input_files, "PIPE_SECONDS", 0.01)
    os.mkfifo(tmp_path / "hosts")
    with pytest.raises(InputError, match="nobody wrote to this pipe"):
        read_text(str(tmp_path / "hosts"), fix=NO_FIX)


@pytest.mark.parametrize("name", ["chat_template.jinja", "vocab.txt", "tokenizer_config.json"])
def test_a_tokenizer_contains_no_file_of_the_user(clone: Path, name: str) -> None:
    """A chat template that is a link to a secret would be in every row that nodes get: it is refused by name."""
    (clone / "tokenizer.json").write_text("{}")
    (clone / name).symlink_to("../.netrc")
    with pytest.raises(AboardError, match="outside of its directory") as refused:
        load_vocabulary(str(clone))
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(("name", "target"), [("tokenizer.model", "../.netrc"), ("chat_templates", "..")])
def test_an_export_contains_no_file_of_the_user(clone: Path, tmp_path: Path, name: str, target: str) -> None:
    """Users publish exports: what comes with a model and links to a file or directory elsewhere is refused by name."""
    (clone / name).symlink_to(target)
    (tmp_path / "out").mkdir()
    with pytest.raises(AboardError, match="can't be used"):
        _copy_files(clone, tmp_path / "out", (name,))
    (clone / name).unlink()
    (clone / "chat_templates").mkdir(exist_ok=True)
    (clone / "chat_templates/a.jinja").write_text("x")
    _copy_files(clone, tmp_path / "out", ("chat_*",))
    assert [path.read_text() for path in (tmp_path / "out").rglob("*.*")] == ["x"]


def test_links_between_models_are_followed(clone: Path, tmp_path: Path) -> None:
    """The Hub's cache consists of links, and users link the files of one model into another directory."""
    blob = tmp_path / "models--a--b/blobs/0123"
    snapshot = tmp_path / "models--a--b/snapshots/main"
    blob.parent.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    blob.write_text(json.dumps({"vocab_size": 7}))
    (snapshot / "config.json").symlink_to("../../blobs/0123")
    (clone / "config.json").symlink_to(snapshot / "config.json")
    assert read_model_facts(snapshot).vocabulary == 7
    with pytest.raises(AboardError):
        read_model_facts(clone)
    (clone / "config.json").unlink()
    (tmp_path / "config.json").write_bytes(blob.read_bytes())
    (clone / "config.json").symlink_to(tmp_path / "config.json")
    assert read_model_facts(clone).vocabulary == 7
    with pytest.raises(ForeignFileError):
        find_link_target(clone / "config.json")


def test_a_folder_that_is_a_bare_git_repository_runs_no_filter(clone: Path, tmp_path: Path) -> None:
    """A committed HEAD, objects and config with a `clean` filter look like a repository: git runs nothing of it."""
    (clone / ".git").rmdir()
    run = partial(subprocess.run, check=True, cwd=clone, stdout=subprocess.DEVNULL)
    run(["git", "init", "-q", "--bare", "."])
    run(["git", "config", "core.bare", "false"])
    run(["git", "config", "core.worktree", "."])
    (clone / "aboard.yaml").write_text("cluster: {nodes: localhost}\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "--git-dir=.", "--work-tree=."]
    run([*git, "add", "aboard.yaml"])
    run([*git, "commit", "-qm", "x"])
    for filter_ in ("clean", "smudge", "process"):
        run(["git", "config", f"filter.evil.{filter_}", f"touch {tmp_path}/mark; cat"])
    run(["git", "config", "core.fsmonitor", f"touch {tmp_path}/mark"])
    (clone / ".gitattributes").write_text("* filter=evil\n")
    # Another length and time than in the index, so that git would compare the content.
    (clone / "aboard.yaml").write_text("cluster: {nodes: [localhost]}\n")
    assert read_git_state(clone) == {}
    assert not (tmp_path / "mark").exists()
    subprocess.run([*git, "status", "--short"], cwd=clone, check=False, stdout=subprocess.DEVNULL)
    assert (tmp_path / "mark").exists(), "the attack itself does not work"
    with suppress(AboardError):
        guess_nodes(here=HERE)


START_WORKERS = """
from aboard.trainer.data.tokenize_workers.worker_pool import start_workers
if __name__ == "__main__":
    with start_workers(1, None):
        pass
"""


def test_workers_import_no_module_of_the_repository(clone: Path, tmp_path: Path) -> None:
    """`aboard data` and `aboard train` start workers as `python -c`: a multiprocessing.py here is not imported."""
    for name in ("multiprocessing", "pickle", "runpy", "socket"):
        (clone / f"{name}.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'a').write({name!r})\n")
    # A file elsewhere, as the installed command is: its directory is first on the path, not the clone.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/aboard").write_text(START_WORKERS)
    ran = subprocess.run([sys.executable, tmp_path / "bin/aboard"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not (tmp_path / "mark").exists(), (tmp_path / "mark").read_text()


def test_a_path_with_the_working_directory_runs_no_program_of_the_repository(clone: Path, tmp_path: Path) -> None:
    """With `.` or an empty entry in PATH, neither the head nor a check takes git, ssh or nvidia-smi from a clone."""
    for name in ("git", "ssh", "scontrol", "nvidia-smi", "sh", "bash", "env", "python3", "getent", "ip", "uname"):
        (clone / name).write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/mark\n")
        (clone / name).chmod(0o755)
    (clone / "aboard.yaml").write_text(f"cluster: {{nodes: localhost, workdir: {clone}}}\n")
    environment = {**os.environ, "PATH": f".::{os.environ['PATH']}", "HOME": str(tmp_path)}
    command = [sys.executable, "-P", "-m", "aboard", "check", "--only", "gpu", "--only", "host"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "localhost" in ran.stdout, ran.stderr
    assert not (tmp_path / "mark").exists(), (tmp_path / "mark").read_text()


def test_a_reference_without_end_fills_no_memory(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch that is a link to /dev/zero ends git at a limit of its memory."""
    monkeypatch.setattr(tracker_inputs, "_GIT_MEMORY", 32 * 1024 * 1024)
    monkeypatch.setattr(tracker_inputs, "_GIT_SECONDS", 60 * slowness())
    (clone / ".git").rmdir()
    subprocess.run(["git", "init", "-q", "-b", "main", "."], check=True)
    assert read_git_state(clone) == {}
    (clone / ".git/refs/heads/main").symlink_to("/dev/zero")
    with within(10):
        assert read_git_state(clone) == {}


def test_consent_is_asked_for_a_file_itself(clone: Path) -> None:
    """`aboard allow` prints nothing of a secret that ./aboard.yaml links to, and does not wait for a pipe."""
    (clone / "aboard.yaml").symlink_to("../.netrc")
    os.mkfifo(clone / ".deepspeed_env")
    for file in FOUND_FILES:
        with within(15), pytest.raises(InputError, match="can't be read: it is a") as refused:
            list_settings_to_allow(file, fix=NO_FIX)
        assert "hunter2" not in str(refused.value)


def test_a_link_does_not_add_nodes_to_a_file_of_the_user(clone: Path, tmp_path: Path) -> None:
    """`aboard init` adds its section to an ./aboard.yaml without one, but not to what a link leads to."""
    (tmp_path / ".profile").write_text("")
    (clone / "aboard.yaml").symlink_to("../.profile")
    nodes = find_nodes(("n1",), None, home=tmp_path)
    with pytest.raises(InputError):
        choose_output_action("aboard.yaml", nodes)
    (clone / "aboard.yaml").unlink()
    (clone / "aboard.yaml").write_text("")
    assert choose_output_action("aboard.yaml", nodes) == "add"


def test_helpers_of_a_sandbox_import_no_module_of_the_repository(clone: Path, tmp_path: Path) -> None:
    """They run as root: a json.py in the directory where `sudo aboard sandbox up` is typed is not imported."""
    for name in ("json", "dataclasses", "pathlib", "os"):
        (clone / f"{name}.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'a').write({name!r})\n")
    spec = write_spec_file({})
    subprocess.run(
        build_helper_argv("aboard.sandbox.namespaces.run_in_host", spec),
        env=build_helper_environment(),
        pass_fds=(spec,),
        capture_output=True,
        check=False,
    )
    os.close(spec)
    assert not (tmp_path / "mark").exists(), (tmp_path / "mark").read_text()
