"""aboard.yaml: every mistake at its place, several files, overrides, and the schema."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from deadlines import within
from hypothesis import HealthCheck, example, given, settings, strategies as st

from aboard.config.config_loader import build_json_schema, build_notify_settings, load_config_files
from aboard.config.node_entries import read_section_entries
from aboard.core.monitoring.notify_settings import EVENTS, NotifySettings
from aboard.diagnoses import InputError

GOLDEN = Path(__file__).parents[1] / "golden"

ALL_KEYS = """\
cluster:
  nodes:
    - gpu[01-02] slots=4
    - name: big
      slots: 8
      address: 10.0.0.9
      user: bob
      port: 2222
      python: /opt/venv/bin/python
      workdir: /data/my project
      env: {NCCL_DEBUG: INFO, OMP_NUM_THREADS: 8, ON: yes}
      fabric_address: 10.1.0.9
      setup: [module load cuda, 'source "$HOME/venv/bin/activate"']
      container: {runtime: apptainer, image: /img/a.sif, options: [--nv, --bind=/data]}
  slots: 2
  user: alice
  port: 22
  python: python3.12
  workdir: /home/alice
  env:
  fabric_address: "{name}i"
  setup: conda activate train
  container:
    runtime: podman
    image: nvcr.io/nvidia/pytorch:25.01-py3
run:
  output: /data/out
  writes: 1.5TB
data:
  files: [train.jsonl, more]
  validation: held.jsonl
  format: messages
  text_column: body
  tokenizer: org/model
  template: chat.jinja
  max_length: 4096
  loss_on: last
  allow: data-duplicates
notify:
  webhook: {file: hook}
  format: slack
  command: [./page, --me]
  on: [failure, end]
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems(*names: str, sets: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    with pytest.raises(InputError) as caught:
        load_config_files(names, sets)
    return [(str(problem), problem.fix) for problem in caught.value.problems]


def test_all_keys(files: Path) -> None:
    """Every key is read, and env values stay as they were written."""
    (files / "a.yaml").write_text(ALL_KEYS)
    document = load_config_files(["a.yaml"]).document
    section, run = document.cluster, document.run
    assert section is not None
    assert run is not None
    assert (run.output, run.writes) == ("/data/out", 1_500_000_000_000)
    assert section.nodes is not None
    assert section.setup == ["conda activate train"]
    big = section.nodes[1]
    assert not isinstance(big, str)
    assert big.env == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8", "ON": "yes"}


def test_all_mistakes_at_once(files: Path) -> None:
    """Each mistake is named with its line, what was seen, and what to write, in the order of the lines."""
    (files / "a.yaml").write_text((GOLDEN / "mistakes.yaml").read_text())
    text = "".join(f"{seen}\n    fix: {fix}\n" for seen, fix in problems("a.yaml"))
    assert text == (GOLDEN / "mistakes.txt").read_text()


def test_secret_stays_out_of_messages(files: Path) -> None:
    """A wrong env value isn't repeated."""
    (files / "a.yaml").write_text('cluster:\n  env:\n    TOKEN: "hf_secret\\0"\n    OTHER: [hf_secret]\n')
    assert "hf_secret" not in str(problems("a.yaml"))


def test_merge(files: Path) -> None:
    """Several files make one document, section by section."""
    (files / "nodes.yaml").write_text("cluster:\n  nodes: n[1-2]\n  env: {A: 1}\n")
    (files / "user.yaml").write_text("cluster:\n  user: alice\n  env: {B: 2}\n")
    (files / "empty.yaml").write_text("cluster:\n")
    section = load_config_files(["empty.yaml", "nodes.yaml", "user.yaml"]).document.cluster
    assert section is not None
    assert (section.nodes, section.user, section.env) == (["n[1-2]"], "alice", {"A": "1", "B": "2"})


def test_merge_refuses_a_key_in_two_files(files: Path) -> None:
    """A value that two files give is an error that names both places."""
    (files / "a.yaml").write_text("cluster:\n  user: alice\n  env: {A: 1}\n")
    (files / "b.yaml").write_text("\ncluster:\n  env:\n    A: 1\n  user: bob\n")
    assert [seen for seen, _ in problems("a.yaml", "b.yaml")] == [
        "b.yaml:4:5: cluster.env.A is also set at a.yaml:3:9",
        "b.yaml:5:3: cluster.user is also set at a.yaml:2:3",
    ]


def test_wrong_files_at_once(files: Path) -> None:
    """A missing file doesn't hide what is wrong in another."""
    (files / "a.yaml").write_text("a: 1\na: 2\n")
    (files / "latin.yaml").write_bytes(b"a: 1\nb: \xe9\n")
    assert [seen for seen, _ in problems("none.yaml", "a.yaml", "latin.yaml")] == [
        "none.yaml: the file does not exist",
        "a.yaml:2:1: the key 'a' is already on line 1",
        "latin.yaml:2: is not UTF-8 text",
    ]


def test_set(files: Path) -> None:
    """--set wins over the files, makes sections that aren't there, and the last one wins."""
    (files / "a.yaml").write_text("cluster:\n  slots: 4\n")
    section = load_config_files(
        ["a.yaml"], ["cluster.slots=8", "cluster.nodes=n[1-4]", "cluster.env.A=010", "cluster.slots=2"]
    ).document.cluster
    assert section is not None
    assert (section.slots, section.nodes, section.env) == (2, ["n[1-4]"], {"A": "010"})


def test_set_takes_lists_in_brackets(files: Path) -> None:
    """As in the file; a variable keeps its text."""
    container = ["cluster.container.runtime=podman", "cluster.container.image=i", "cluster.container.binds=[/a:/b, /c]"]
    section = load_config_files([], ["cluster.nodes=[n1, 'n[2-3]']", "cluster.env.A=[x]", *container]).document.cluster
    assert section is not None
    assert section.container is not None
    assert (section.nodes, section.env) == (["n1", "n[2-3]"], {"A": "[x]"})
    assert section.container.binds == ["/a:/b", "/c"]


@pytest.mark.parametrize(
    ("text", "seen", "fix"),
    [
        ("cluster.slot=8", "--set cluster.slot: unknown key 'slot' in cluster", "did you mean 'slots'?"),
        ("clutser.slots=8", "--set clutser.slots: unknown key 'clutser'", "did you mean 'cluster'?"),
        (
            "cluster.slots=x",
            '--set cluster.slots: cluster.slots must be a whole number, not "x"',
            "write slots as a whole number",
        ),
        ("cluster.slots", "--set: 'cluster.slots' is not KEY=VALUE", "write --set cluster.slots=VALUE, without"),
        (".=", "--set: '.' is not KEY=VALUE", "write --set cluster.slots=VALUE"),
        ("learning_rate=1e-4", "unknown key 'learning_rate'", "did you mean 'train.learning_rate'?"),
        ("lora=8", "unknown key 'lora'", "write it below `train:`: adapter: {r: 16, alpha: 32}"),
        ("train.lora=8", "train: 'lora' has a different name", "write adapter: {r: 16, alpha: 32}"),
        (
            "train.gradient_checkpointing=maybe",
            'can\'t be "maybe"; use one of true, false, selective',
            "known here: true",
        ),
        ("cluster.nodes=[a, {b]", "--set cluster.nodes: not valid YAML", "put quotes around values"),
        ("cluster.nodes.0=x", "'nodes' at a.yaml:2:3 is a value, not a section", "change it in a.yaml"),
    ],
)
def test_wrong_set(files: Path, text: str, seen: str, fix: str) -> None:
    """A wrong override is refused by its own text."""
    (files / "a.yaml").write_text("cluster:\n  nodes: a\n")
    ((found, way),) = problems("a.yaml", sets=(text,))
    assert seen in found
    assert fix in way


@pytest.mark.parametrize(
    ("text", "size"), [("200GB", 200 * 10**9), ("1.5 TiB", 3 << 39), ("512kib", 512 << 10), ("4096", 4096)]
)
def test_sizes(files: Path, text: str, size: int) -> None:
    """With a unit, of a thousand or of 1024, or in bytes."""
    run = load_config_files([], ["run.output=/out", f"run.writes={text}"]).document.run
    assert run is not None
    assert run.writes == size


@pytest.mark.parametrize("text", ["200G", "many", "-1GB", "0", "[1]", "1e3", "999999PB", ""])
def test_wrong_sizes(files: Path, text: str) -> None:
    """What isn't clear is asked for, in words that show how."""
    ((seen, fix),) = problems(sets=("run.output=/out", f"run.writes={text}"))
    assert "run.writes" in seen
    assert "write" in fix


def test_a_run_says_both_where_and_how_much(files: Path) -> None:
    """One without the other can't be held against a disk."""
    assert [seen for seen, _ in problems(sets=("run.writes=1GB",))] == ["--set run.writes: run has no 'output'"]


def test_who_hears_of_a_run(files: Path) -> None:
    """Paths start at the file; without a list, every event is told."""
    (files / "a.yaml").write_text(ALL_KEYS)
    settings = build_notify_settings(load_config_files(["a.yaml"]))
    assert settings == NotifySettings(
        file=str(files / "hook"), format="slack", command=(str(files / "page"), "--me"), on=("failure", "end")
    )
    assert build_notify_settings(load_config_files([], ["notify.webhook.env=HOOK"])) == NotifySettings(env="HOOK")
    assert NotifySettings().on == EVENTS


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ("webhook: https://hooks.example/SECRET", "the address is a secret"),
        ("webhook: {env: 'https://hooks.example/SECRET'}", "this is not the name of a variable"),
        ("webhook: {file: 'https://hooks.example/SECRET'}", "this is an address, not the path"),
        ("webhook: {env: HOOK, file: SECRET}", "it needs one of env and file"),
        ("webhook: {}", "it needs one of env and file"),
        ("on: end", "it names no receiver"),
        ("{command: page, format: slack}", "format is that of a web hook"),
    ],
)
def test_an_address_in_the_file_is_refused_and_not_shown(files: Path, value: str, seen: str) -> None:
    """The message says where it belongs; --set would put it on a command line, too."""
    (files / "a.yaml").write_text(f"notify:\n  {value}\n")
    with pytest.raises(InputError) as caught:
        load_config_files(["a.yaml"])
    (problem,) = caught.value.problems
    assert seen in problem.seen
    assert "SECRET" not in f"{problem}{problem.fix}"
    with pytest.raises(InputError) as caught:
        load_config_files([], ["notify.webhook=https://hooks.example/SECRET"])
    assert "SECRET" not in f"{caught.value}{caught.value.problems}"


def test_schema_is_golden() -> None:
    """The schema for editors changes only on purpose: aboard init --schema > tests/unit/golden/schema.json."""
    assert build_json_schema() == (GOLDEN / "schema.json").read_text()


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
KEYS = st.sampled_from(["cluster", "nodes", "name", "slots", "env", "container", "setup", "runtime", "x"]) | st.text(
    max_size=4
)
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))


@pytest.mark.ci
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@example(tree={"cluster": {"env": {"\U00010000": None}}}, sets=[])
@given(tree=st.dictionaries(KEYS, TREES), sets=st.lists(st.text(max_size=12) | st.just("cluster.env.A=x"), max_size=2))
def test_any_document(files: Path, tree: object, sets: list[str]) -> None:
    """No document and no override ends the loader with anything but a document or an InputError."""
    (files / "a.yaml").write_text(json.dumps(tree))
    with suppress(InputError):
        load_config_files(["a.yaml"], sets)


def test_blanks_in_a_node_entry_take_linear_time(files: Path) -> None:
    """Each of them was tried as the start of `slots=`: 60,000 took ten seconds."""
    (files / "a.yaml").write_text(f'cluster: {{nodes: ["n1{" " * 200_000}x"]}}')
    with within(20):
        assert [entry.name for entry in read_section_entries(load_config_files(["a.yaml"]))] == ["n1", "x"]
