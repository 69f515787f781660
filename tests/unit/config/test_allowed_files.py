"""What in a found file needs consent, and that nothing in the schema is forgotten."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from aboard.config.allowed_files import compute_digest, describe_settings
from aboard.config.consent_rules import (
    HARMLESS_VARIABLES,
    SETTING_RULES,
    VALIDATED,
    GuardedSetting,
    Rule,
    describe_variable_effect,
    find_rules,
    list_guarded_settings,
)
from aboard.config.schema.aboard_yaml import AboardConfig
from aboard.config.schema.base_section import Section
from aboard.config.yaml_tree import parse_tree
from aboard.core.plan.training_settings import TRAIN_SETTINGS

ROOT = Path(__file__).parents[3]


def list_settings(text: str, folder: Path = ROOT) -> list[GuardedSetting]:
    return list_guarded_settings(parse_tree(text, file="aboard.yaml"), folder)


def list_keys(text: str, folder: Path = ROOT) -> list[str]:
    return [setting.key for setting in list_settings(text, folder)]


def list_types(annotation: Any) -> Iterator[Any]:
    """The types that a value of this annotation may have, without Annotated, unions and lists."""
    if get_origin(annotation) is Literal or not get_args(annotation):
        yield annotation
        return
    inner = get_args(annotation)
    for each in inner[:1] if hasattr(annotation, "__metadata__") else inner:
        yield from list_types(each)


def list_schema_keys(section: type[BaseModel], path: str = "") -> Iterator[tuple[str, str, list[Any]]]:
    for name, field in section.model_fields.items():
        types = [each for each in list_types(field.annotation) if each is not type(None)]
        yield path, name, types
        for each in types:
            if isinstance(each, type) and issubclass(each, Section):
                yield from list_schema_keys(each, f"{path}.{name}".lstrip("."))


RULES = {path: find_rules(path) for path in (*SETTING_RULES, "train", "train.adapter")}
SCHEMA_KEYS = [each for each in list_schema_keys(AboardConfig) if not each[0].endswith(("container", "webhook"))]


def test_every_key_of_the_schema_has_a_rule_or_is_a_section() -> None:
    """A new key needs consent until somebody declares it harmless, and this test asks for the declaration."""
    sections = {*RULES, "cluster.env", "cluster.nodes.env"}
    undeclared = [
        f"{path}.{name}".lstrip(".")
        for path, name, _types in SCHEMA_KEYS
        if name not in RULES.get(path, {}) and f"{path}.{name}".lstrip(".") not in sections
    ]
    assert undeclared == []


def test_every_rule_is_for_a_key_of_the_schema() -> None:
    known = {(path, name) for path, name, _types in SCHEMA_KEYS}
    assert {(path, name) for path, rules in RULES.items() for name in rules} - known == set()


def test_a_key_that_the_schema_is_said_to_restrict_is_a_number_or_a_choice() -> None:
    """The time limit of Slurm is text, but only of digits, `:` and `-`."""
    free = [
        f"{path}.{name}"
        for path, name, types in SCHEMA_KEYS
        if RULES.get(path, {}).get(name) is VALIDATED
        and not all(each in {int, float, bool} or get_origin(each) is Literal for each in types)
    ]
    assert free == ["cluster.slurm.time"]


def test_a_key_without_a_rule_needs_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    without = {name: each for name, each in TRAIN_SETTINGS.items() if name != "seed"}
    monkeypatch.setattr("aboard.core.plan.training_settings.TRAIN_SETTINGS", without)
    assert list_keys("train: {seed: 1, sede: 2, learning_rate: 1}\n") == ["train.seed"]


def test_a_mistake_in_a_file_is_left_to_its_validation() -> None:
    """An unknown key or a value of the wrong type is named as such, not as something to allow."""
    assert (
        list_keys("cluster: {ndoes: n1, slots: many, env: x}\ntrain: [1]\nclutser: {}\ndata: {packing: perhaps}\n")
        == []
    )


def test_everything_in_a_container_needs_consent() -> None:
    """Its image, binds, options and variables: the whole section is one setting."""
    (setting,) = list_settings("cluster: {container: {runtime: docker, image: x, binds: [/:/host]}}")
    assert (setting.key, setting.value["binds"], setting.where) == (
        "cluster.container",
        ["/:/host"],
        "aboard.yaml:1:22",
    )


GUARDED = {
    "user": "cluster: {user: bob}",
    "user in a node": "cluster: {nodes: [bob@n1]}",
    "user in a name": "cluster: {nodes: [{name: bob@n1}]}",
    "port": "cluster: {port: 2222}",
    "address": "cluster: {nodes: [{name: n1, address: other}]}",
    "fabric": "cluster: {fabric_address: other}",
    "python": "cluster: {nodes: [{name: n1, python: ./evil}]}",
    "setup": "cluster: {setup: ./evil}",
    "working directory": "cluster: {workdir: /home/bob}",
    "job option": "cluster: {slurm: {extra: [--mem=0, --export=A]}}",
    "node file of Slurm": "cluster: {slurm: {exclude: ./nodes}}",
    "node file in an option": "cluster: {slurm: {extra: --nodelist=/etc/passwd}}",
    "hostfile elsewhere": "cluster: {hostfile: ../hosts}",
    "data elsewhere": "data: {files: [../.ssh]}",
    "data at home": "data: {files: [{path: [~/.netrc]}]}",
    "data of a process": "data: {files: [/proc/self/cwd/.ssh/rc]}",
    "data with a split": "data: {validation: ['../x?split=test']}",
    "tokenizer": "data: {tokenizer: /etc}",
    "template": "data: {template: /etc/passwd}",
    "model": "train: {model: ~/model}",
    "adapter": "train: {adapter: {path: ../../adapter}}",
    "checkpoint": "train: {resume: /tmp/step-1}",
    "output": "train: {output_dir: ../out}",
    "space": "run: {output: /data, writes: 1GB}",
    "project of somebody else": "train: {project: /Users/eve/runs}",
    "model code": "train: {trust_remote_code: true}",
}


@pytest.mark.parametrize("name", GUARDED)
def test_what_reaches_beyond_the_directory_needs_consent(name: str, tmp_path: Path) -> None:
    (setting,) = list_settings(GUARDED[name], tmp_path)
    assert setting.effect


def test_a_link_out_of_the_directory_needs_consent(tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "out").symlink_to(tmp_path)
    (folder / "in").symlink_to(folder)
    (folder / "circle").symlink_to("circle")
    files = "data: {files: [out/x, in/x, circle, x/../../y, ./x, x]}"
    assert list_keys(files, folder) == ["data.files[0]", "data.files[2]", "data.files[3]"]


def test_a_hostfile_that_names_users_needs_consent_for_each_of_them(tmp_path: Path) -> None:
    text = "cluster: {hostfile: hosts}"
    (tmp_path / "hosts").write_text("n1 slots=8\nn2 slots=8  # mail me@example.com\n")
    assert list_settings(text, tmp_path) == []
    (tmp_path / "hosts").write_text("n1 slots=8\nbob@n2 slots=8\n")
    assert [setting.value for setting in list_settings(text, tmp_path)] == [["hosts", "bob@n2 slots=8"]]


LOADING = """
LD_PRELOAD LD_LIBRARY_PATH PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONWARNINGS PATH BASH_ENV NCCL_NET_PLUGIN
NCCL_DEBUG_FILE NCCL_CONF_FILE TORCH_LOGS TORCH_LOGS_OUT TORCH_LOGS_FORMAT TMPDIR XLA_FLAGS COVERAGE_PROCESS_START
LOCAL_KERNELS SSLKEYLOGFILE LOCALDOMAIN DATABRICKS_HOST MASTER_ADDR MASTER_PORT HOME HF_HOME HF_ENDPOINT HF_TOKEN
WANDB_API_KEY WANDB_BASE_URL MLFLOW_TRACKING_URI https_proxy SSL_CERT_FILE ABOARD_RUN GLIBC_TUNABLES PS4 A nccl_debug
HF_DATASETS_TRUST_REMOTE_CODE TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD TORCH_NCCL_DEBUG_INFO_TEMP_FILE CUDA_CACHE_PATH
PYTHONIOENCODING TZ LANG UCX_TLS
"""


def test_a_variable_that_is_not_on_the_list_needs_consent() -> None:
    assert [name for name in LOADING.split() if not describe_variable_effect(name, "1")] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_SOCKET_IFNAME", "^lo,docker0"),
        ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1"),
        ("OMP_NUM_THREADS", "8"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:128"),
        ("CUDA_VISIBLE_DEVICES", "0,1"),
    ],
)
def test_usual_variables_need_no_consent(name: str, value: str) -> None:
    assert describe_variable_effect(name, value) == ""


@pytest.mark.parametrize(
    "value", ["/tmp/x", "./x", "a/b/c", "../x", "http://x", "tcp://x:1", "$(id)", "a b", "a\nb", "~", "a" * 300]
)
def test_no_value_of_a_harmless_variable_is_a_path_or_an_address(value: str) -> None:
    """A file, a URL, another host's port, a shell line or a control character needs consent under any name."""
    assert [name for name in HARMLESS_VARIABLES if not describe_variable_effect(name, value)] == []


def test_the_value_of_a_credential_is_not_shown() -> None:
    """The question may be in the log of a job."""
    text = "cluster: {env: {HF_TOKEN: hf_abcdef, LD_PRELOAD: /x.so}}"
    shown = "\n".join(describe_settings(list_settings(text)))
    assert ("hf_abcdef" in shown, "/x.so" in shown, "(hidden)" in shown) == (False, True, True)


def test_only_what_needs_consent_is_in_the_digest() -> None:
    """Comments, other settings and positions may change; a value, a key or their order may not."""

    def digest(text: str) -> str:
        return compute_digest(list_settings(text))

    first = digest("cluster: {nodes: n1, python: /a, env: {PATH: 1}}\n")
    assert first == digest(
        "# more\ncluster: {nodes: n2, slots: 3, python: /a, env: {NCCL_DEBUG: b, PATH: '1'}}\ndata: {}\n"
    )
    others = ["{python: /b, env: {PATH: 1}}", "{python: /a}", "{nodes: [{name: n1, python: /a}], env: {PATH: 1}}"]
    assert len({first, *(digest(f"cluster: {other}\n") for other in others)}) == 4


def list_printed_files() -> Iterator[tuple[str, str]]:
    """Each aboard.yaml of the examples, and each that a page prints."""
    for path in sorted((ROOT / "examples").rglob("aboard.yaml")):
        yield str(path.relative_to(ROOT)), path.read_text()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]:
        for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)):
            yield f"{path.relative_to(ROOT)}#{number}", block


def test_what_our_pages_print_needs_no_more_consent_than_they_say() -> None:
    """Only two pages have such settings, and they say to type `aboard allow`."""
    asked = {name: keys for name, text in list_printed_files() if (keys := list_keys(text, ROOT / "examples"))}
    assert asked == {
        "docs/containers.md#0": ["cluster.container"],
        "docs/monitoring.md#0": ["notify.webhook", "notify.command"],
        "docs/monitoring.md#1": ["metrics.textfile"],
    }
    assert "aboard allow" in (ROOT / "docs/containers.md").read_text()


def list_table_rows() -> Iterator[str]:
    """The table in docs/security.md: one row for each rule, with its keys by section."""
    keys: dict[str, dict[str, list[str]]] = {}
    rules: dict[str, Rule] = {}
    for section, declared in RULES.items():
        for name, rule in declared.items():
            rules[rule.harmless + rule.effect] = rule
            keys.setdefault(rule.harmless + rule.effect, {}).setdefault(section, []).append(name)
    for number, rule in rules.items():
        if rule is VALIDATED:
            keys[number] |= {section: ["all keys that no other row names"] for section in ("train", "train.adapter")}
        shown = "; ".join(f"`{section}`: {', '.join(names)}" for section, names in keys[number].items())
        yield f"| {shown} | {rule.harmless} | {rule.effect or '–'} |"


def test_the_documentation_has_the_rule_of_every_key_and_every_harmless_variable() -> None:
    text = (ROOT / "docs/security.md").read_text()
    assert [row for row in list_table_rows() if row not in text] == []
    assert [name for name in HARMLESS_VARIABLES if f"`{name}`" not in text] == []


def test_who_hears_of_a_run_needs_consent() -> None:
    """An address, and a program that would run on this machine; an address where it must not stand is not shown."""
    text = "notify: {webhook: {env: AWS_SECRET}, command: [./page, me], format: slack, on: [end]}"
    assert list_keys(text) == ["notify.webhook", "notify.command"]
    shown = describe_settings(list_settings("notify: {webhook: 'https://hooks.example/SECRET'}"))
    assert shown[0] == "aboard.yaml:1:19  notify.webhook: (hidden)"
