"""`aboard data` as a person meets it: what is typed, what is written down, exit codes, and what it costs others."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner, Result
from data_files import conversation, tokenizer, written

from aboard.commands.command_line import cli
from aboard.commands.data.command import LOSS_ON
from aboard.config.schema.aboard_yaml import DataSection
from aboard.config.schema.data_settings import DataSettings, load_data_settings
from aboard.diagnoses import AboardError, InputError
from aboard.trainer.data.intake import row_formats
from aboard.trainer.data.tokens.encoder import LossOn


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(*argv: str) -> Result:
    return CliRunner().invoke(cli, ["data", *argv])


def refused(*argv: str) -> AboardError:
    error = typed(*argv).exception
    assert isinstance(error, AboardError)
    return error


def good(count: int = 30) -> str:
    return written(Path("train.jsonl"), map(conversation, range(count)))


def test_exit_codes() -> None:
    """0 open, 1 warnings with --strict, 2 shut, 0 again when what shuts it is allowed."""
    assert typed(good()).exit_code == 0
    few = written(Path("few.jsonl"), [*map(conversation, range(200)), {"messages": []}])
    assert (typed(few).exit_code, typed(few, "--strict").exit_code) == (0, 1)
    broken = written(Path("broken.jsonl"), [conversation(1), "{"])
    assert (typed(broken).exit_code, typed(broken, "--allow", "data-broken").exit_code) == (2, 0)


@pytest.mark.ci
def test_the_line_to_type_is_the_command_as_it_was_typed() -> None:
    """With all that decides what is read; what only shows it is left out."""
    broken = written(Path("my rows.jsonl"), [conversation(1), "{"])
    said = typed(broken, "--tokenizer", tokenizer(Path("tok")), "--max-length", "64", "--show", "1").output
    assert "aboard data 'my rows.jsonl' --tokenizer=tok --max-length=64 --allow=data-broken" in said


@pytest.mark.ci
def test_so_many_rows_of_each_source_are_shown() -> None:
    """Who mixes files wants to see that each of them is read as it was meant, and the validation rows too."""
    held = written(Path("held.jsonl"), map(conversation, range(90, 95)))
    more = written(Path("more.jsonl"), map(conversation, range(50, 60)))
    said = typed(good(), more, "--validation", held, "--tokenizer", tokenizer(Path("tok")), "--show", "2").output
    shown = [line.split()[1] for line in said.splitlines() if line.startswith("row ")]
    assert shown == [f"{name}.jsonl:{line}" for name in ("train", "more", "held") for line in (1, 2)]


def test_a_share_of_the_rows_is_the_validation_set() -> None:
    """The report has both sides; a share of few rows that has none is an error."""
    said = json.loads(typed(good(), "--validation", "20%", "--json").output)["sources"]
    assert [(each["path"], each["validation"]) for each in said] == [
        ("train.jsonl", False),
        ("20% of train.jsonl", True),
    ]
    assert refused(good(), "--validation", "0.001%").code == "data-validation-share"
    assert "between 0% and 100%" in str(refused(good(), "--validation", "100%"))


def test_a_code_that_is_none_is_refused_before_anything_is_read() -> None:
    """With the nearest one."""
    assert "did you mean 'data-broken'?" in refused("no-such-file.jsonl", "--allow", "data-brokn").fix


def test_files_that_are_not_there() -> None:
    """A name that is nothing, and no name at all."""
    assert refused("nothing.jsonl").code == "data-missing"
    assert "aboard data FILE…" in refused().fix


@pytest.mark.ci
def test_the_section_of_aboard_yaml() -> None:
    """Without arguments ./aboard.yaml is used; options win over it; its paths start where it stands."""
    Path("sub").mkdir()
    written(Path("sub/train.jsonl"), [*map(conversation, range(30)), "{"])
    tokenizer(Path("sub/tok"))
    section: dict[str, Any] = {"files": "train.jsonl", "tokenizer": "tok", "max_length": 64, "allow": ["data-broken"]}
    Path("sub/aboard.yaml").write_text(json.dumps({"data": section}))
    found = json.loads(typed("sub/aboard.yaml", "--json").output)
    assert (found["rows"], found["broken"], found["bins"]["capacity"]) == (31, 1, 64)
    assert found["allowed"] == ["data-broken"]
    assert json.loads(typed("sub/aboard.yaml", "--json", "--max-length", "128").output)["bins"]["capacity"] == 128
    Path("aboard.yaml").write_text("data: {files: sub/train.jsonl}\n")
    assert typed().exit_code == 2
    Path("aboard.yaml").write_text("cluster: {nodes: n1}\n")
    assert "aboard.yaml has no data.files" in refused().seen


def test_every_key_of_the_section_is_obeyed() -> None:
    """What may be written is what is handed on; files as sources, and a validation set also as a share."""
    other = {"sources": "files", "validation_share": "validation"}
    handed = {other.get(field, field) for field in DataSettings.__dataclass_fields__}
    # Of the section `train`.
    assert set(DataSection.model_fields) == handed - {"trust_remote_code"}
    Path("a.yaml").write_text("data: {loss_on: last, format: text, text_column: body, template: t.jinja}\n")
    words = load_data_settings(["a.yaml"])
    assert (words.loss_on, words.format, words.text_column, words.template) == ("last", "text", "body", "t.jinja")


def test_words_that_stand_in_two_rooms_are_the_same() -> None:
    """The formats and the losses, where the light install needs them and where they are obeyed."""
    losses = get_args(get_args(DataSection.model_fields["loss_on"].annotation)[0])
    assert len({losses, get_args(LossOn), LOSS_ON}) == 1
    assert get_args(get_args(DataSection.model_fields["format"].annotation)[0]) == row_formats.FORMAT_NAMES


@pytest.mark.ci
def test_a_template_of_ones_own() -> None:
    """A file in place of the tokenizer's; one that isn't there is named."""
    Path("t.jinja").write_text("{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}")
    said = typed(good(), "--tokenizer", tokenizer(Path("tok")), "--template", "t.jinja", "--show", "1").output
    assert "row train.jsonl:1 Who are you 0 ?<|im_end|>«I am fine 0<|im_end|>»" in said
    error = refused("train.jsonl", "--tokenizer", "tok", "--template", "none.jinja")
    assert isinstance(error, InputError)
    assert "none.jinja" in error.seen


@pytest.mark.ci
def test_other_verbs_do_not_pay_for_it() -> None:
    """Neither the front page nor the stories of the gate import what the extra brings."""
    heavy = "{'numpy', 'pyarrow', 'datasets', 'tokenizers', 'transformers', 'torch'}"
    code = (
        "import sys\nfrom aboard.commands.command_line import COMMANDS, cli\n"
        "for argv in (['--help'], ['why', 'data-eos'], *([name, '--help'] for name in COMMANDS)):\n"
        "    cli.main(argv, standalone_mode=False)\n"
        f"sys.exit(repr(sorted({heavy} & set(sys.modules))) if {heavy} & set(sys.modules) else 0)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr


def test_the_light_install_is_told_what_is_missing() -> None:
    """What the extra brings is named before any of it is imported."""
    code = (
        "import sys\n"
        "class Without:\n"
        "    def __init__(self, finder): self.finder = finder\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        gone = name.partition('.')[0] in {'numpy', 'pyarrow', 'datasets', 'transformers', 'tokenizers'}\n"
        "        return None if gone else self.finder.find_spec(name, path, target)\n"
        "sys.meta_path[:] = map(Without, sys.meta_path)\n"
        "from aboard.commands.command_line import main\nsys.argv = ['aboard', 'data', 'train.jsonl']\nmain()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 3
    assert "pip install '.[train]'" in ran.stderr
