"""Attacks by harmless-looking values of a file that Aboard found: names, options and links that mean something else."""

import json
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from aboard.commands.train.tracker_inputs import read_git_state
from aboard.config.allowed_files import compute_digest, describe_settings, list_settings_to_allow
from aboard.config.consent_rules import list_guarded_settings
from aboard.config.yaml_tree import parse_tree
from aboard.diagnoses import NO_FIX, AboardError
from aboard.trainer.data.intake.source_chunks import SourceSpec, list_source_chunks
from aboard.trainer.data.tokens.tokenizer_parts import load_vocabulary
from aboard.trainer.model.export import TOKENIZER, _copy_files
from aboard.trainer.trackers.send_metrics import Sender
from aboard.trainer.trackers.tracked_run import TrackedRun


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home" / "clone"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def list_guarded_keys(text: str) -> list[str]:
    return [setting.key for setting in list_guarded_settings(parse_tree(text, file="aboard.yaml"), Path())]


@pytest.mark.ci
@pytest.mark.parametrize("name", ["text", "hub:text", "pandas"])
def test_a_format_of_datasets_is_no_data_set_of_the_hub(clone: Path, tmp_path: Path, name: str) -> None:
    """`load_dataset("text")` reads, and "pandas" unpickles, the files of the working directory: neither is loaded."""
    (tmp_path / "secret").write_text("hunter2\n")
    (clone / "train.txt").symlink_to(tmp_path / "secret")
    (clone / "train.pkl").symlink_to(tmp_path / "secret")
    with pytest.raises(AboardError) as refused:
        list_source_chunks(SourceSpec(path=name))
    assert refused.value.code == "data-missing"


def test_a_data_directory_has_no_rows_from_outside(clone: Path, tmp_path: Path) -> None:
    """A link in a directory of data, or beside the index of a token file, makes no private file a row."""
    (tmp_path / "secret").write_text("hunter2\n")
    (clone / "data").mkdir()
    for name, named in (("rows.txt", "data"), ("tokens.bin", "data/tokens.bin"), ("tokens.bin", "data")):
        (clone / "data/tokens.idx").write_bytes(b"")
        (clone / "data" / name).symlink_to(tmp_path / "secret")
        if name == "rows.txt":
            (clone / "data/tokens.idx").unlink()
        with pytest.raises(AboardError) as refused:
            list_source_chunks(SourceSpec(path=named))
        assert refused.value.code == "spread-link-out"
        (clone / "data" / name).unlink()
    (clone / "rows.txt").write_text("a\n")
    (clone / "data/tokens.idx").unlink()
    (clone / "data/rows.txt").symlink_to("../rows.txt")
    assert len(list_source_chunks(SourceSpec(path="data"))) == 1


@pytest.mark.parametrize(
    "option", ["--mem=0 --error=.bashrc", "--mem=0\t--chdir=..", "--exclusive --mail-user=a@b", "--gres=gpu:8 -D.."]
)
def test_an_option_of_sbatch_brings_no_second_one(option: str) -> None:
    """All options of an #SBATCH line count: one that needs consent can't stand behind one that doesn't."""
    assert list_guarded_keys(f'cluster: {{slurm: {{nodes: 1, extra: ["{option}"]}}}}') == ["cluster.slurm.extra[0]"]
    assert not list_guarded_keys("cluster: {slurm: {nodes: 1, extra: [--mem=0, --gres=gpu:8, --exclusive]}}")


def test_consent_to_a_link_ends_when_the_link_leads_elsewhere(clone: Path, tmp_path: Path) -> None:
    """The question shows where a link of the repository leads, and another target needs `aboard allow` again."""
    (clone / "aboard.yaml").write_text("data: {files: [first/rows]}\n")
    (clone / "first").symlink_to("second")
    shown = []
    for place in ("shared", "home/.ssh"):
        (clone / "second").unlink(missing_ok=True)
        (clone / "second").symlink_to(tmp_path / place)
        (setting,) = list_settings_to_allow("aboard.yaml", fix=NO_FIX)
        shown.append(compute_digest([setting]))
        assert str(tmp_path / place / "rows") in "".join(describe_settings([setting]))
    assert shown[0] != shown[1]


@pytest.mark.parametrize(
    "text",
    [
        *("cluster: {python: first/python}", 'cluster: {setup: "module load x; . ./first/env.sh"}'),
        *("cluster: {env: {LD_PRELOAD: first/x.so}}", "cluster: {nodes: [{name: n1, env: {PATH: '/bin:first'}}]}"),
        *("notify: {command: [sh, first/page]}", "notify: {webhook: {file: first/hook}}", "metrics: {textfile: first}"),
        *("cluster: {container: first/image.sif}", "cluster: {slurm: {nodes: 1, extra: [--chdir=first]}}"),
        *("cluster: {hostfile: first/hosts}", "run: {output: first/out}"),
    ],
)
def test_consent_to_any_setting_ends_when_a_link_in_it_leads_elsewhere(clone: Path, tmp_path: Path, text: str) -> None:
    """A commit can change a link: consent to a program, a line of shell or a variable is to the place it leads to."""
    (clone / "aboard.yaml").write_text(text + "\n")
    digests = set()
    for place in ("shared", "evil"):
        (clone / "first").unlink(missing_ok=True)
        (clone / "first").symlink_to(tmp_path / place)
        settings = list_settings_to_allow("aboard.yaml", fix=NO_FIX)
        digests.add(compute_digest(settings))
        assert f"a link to {tmp_path / place}" in "".join(describe_settings(settings))
    assert len(digests) == 2


def test_consent_to_a_deepspeed_env_ends_when_a_link_in_it_leads_elsewhere(clone: Path, tmp_path: Path) -> None:
    """Its variables name files as those of aboard.yaml do."""
    (clone / ".deepspeed_env").write_text("LD_PRELOAD=/x.so:first/x.so\n")
    digests = set()
    for place in ("shared", "evil"):
        (clone / "first").unlink(missing_ok=True)
        (clone / "first").symlink_to(tmp_path / place)
        digests.add(compute_digest(list_settings_to_allow(".deepspeed_env", fix=NO_FIX)))
    assert len(digests) == 2


@pytest.mark.parametrize(
    "text",
    [
        *("cluster: {env: {SSH_ASKPASS: ../evil}}", "cluster: {env: {SSLKEYLOGFILE: ../evil}}"),
        *("cluster: {nodes: [{name: n1, env: {MY_TOKEN_PATH: ../evil}}]}", "data: {tokenizer: ../evil}"),
    ],
)
def test_a_program_can_not_hide_as_a_credential_in_the_question(text: str) -> None:
    """Values of credentials are not shown; a program, a file or a tokenizer is none."""
    (setting,) = list_guarded_settings(parse_tree(text, file="aboard.yaml"), Path())
    shown = "".join(describe_settings([setting]))
    assert "../evil" in shown
    assert "credential" not in shown


def test_a_link_through_proc_is_no_path_in_the_directory(clone: Path) -> None:
    """/proc/self/cwd is the repository for the command that asks, and the user's home for an agent on a node."""
    (clone / "out").symlink_to("/proc/self/cwd/.ssh")
    assert list_guarded_keys("train: {output_dir: out}") == ["train.output_dir"]
    assert list_guarded_keys("train: {model: ~unknown-user/x}") == ["train.model"]


@pytest.mark.ci
@pytest.mark.parametrize("key", ["vocab", "vocab_file", "init_inputs", "gguf_file"])
def test_settings_of_a_tokenizer_name_no_file_of_the_user(clone: Path, tmp_path: Path, key: str) -> None:
    """tokenizer_config.json has arguments of a class: a private key named there would be the vocabulary."""
    (tmp_path / "secret").write_text("hunter2\n[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\n")
    name = [str(tmp_path / "secret")] if key == "init_inputs" else str(tmp_path / "secret")
    (clone / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", key: name}))
    (clone / "vocab.txt").write_text("a\n[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\n")
    with pytest.raises(AboardError) as refused:
        load_vocabulary(str(clone))
    assert refused.value.code == "data-tokenizer"
    assert "outside of its directory" in refused.value.seen


def test_a_link_among_more_chat_templates_is_not_read_or_copied(clone: Path, tmp_path: Path) -> None:
    """`additional_chat_templates` has templates only: no private file gets into rows, or by its name into exports."""
    (tmp_path / "id_key").write_text("hunter2\n")
    folder = clone / "additional_chat_templates"
    folder.mkdir()
    (folder / "id_key").symlink_to(tmp_path / "id_key")
    (tmp_path / "out").mkdir()
    _copy_files(clone, tmp_path / "out", TOKENIZER)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    (folder / "default.jinja").symlink_to(tmp_path / "id_key")
    with pytest.raises(AboardError) as refused:
        load_vocabulary(str(clone))
    assert "outside of its directory" in refused.value.seen


def test_a_path_with_the_prefix_of_the_hub_is_no_name_of_the_hub(clone: Path) -> None:
    """`hub:../model` is neither a path, which would need consent, nor a name."""
    (clone.parent / "model").mkdir()
    with pytest.raises(AboardError) as refused:
        load_vocabulary("hub:../model")
    assert "is a path" in refused.value.seen


@pytest.mark.parametrize("tracker", ["wandb", "tensorboard"])
def test_trackers_write_through_no_link_in_the_output_directory(clone: Path, tracker: str) -> None:
    """A committed output/wandb or output/tensorboard that leads elsewhere gets no file of W&B or TensorBoard."""
    TrackedRun(id="x", name="x", project=None, model="m", config={}).save(clone)
    (clone / tracker).symlink_to(clone.parent)
    with pytest.raises(OSError, match="it is a link"):
        Sender(clone, tracker, print)
    assert [path.name for path in clone.parent.iterdir()] == ["clone"]


def test_a_repository_allows_git_no_protocol(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`protocol.ext.allow` and a remote for missing objects in .git/config run nothing, also with an older git."""
    run = partial(subprocess.run, cwd=clone, check=True, stdout=subprocess.PIPE, text=True)
    run(["git", "init", "-q", "."])
    (clone / "a").write_text("a\n")
    run(["git", "add", "a"])
    run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"])
    tree = run(["git", "rev-parse", "HEAD^{tree}"]).stdout.strip()
    (clone / ".git/objects" / tree[:2] / tree[2:]).unlink()
    for key, value in (
        ("core.repositoryformatversion", "1"),
        ("extensions.partialClone", "evil"),
        ("remote.evil.promisor", "true"),
        ("remote.evil.url", f"ext::touch {tmp_path}/mark"),
        ("protocol.ext.allow", "always"),
    ):
        run(["git", "config", key, value])
    # Git before 2.39.4 does not know this variable.
    (tmp_path / "bin").mkdir()
    old = tmp_path / "bin" / "git"
    old.write_text(f'#!/bin/sh\nunset GIT_NO_LAZY_FETCH\nexec {shutil.which("git")} "$@"\n')
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{old.parent}:/usr/bin:/bin")
    assert read_git_state(clone)["dirty"] is None
    assert not (tmp_path / "mark").exists()
    subprocess.run(["git", "diff-index", "--cached", "HEAD"], cwd=clone, check=False, capture_output=True)
    assert (tmp_path / "mark").exists(), "the attack itself does not work"
