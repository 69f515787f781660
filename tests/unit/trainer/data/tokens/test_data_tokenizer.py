"""A tokenizer by its path or its name on the hub: what can't be had is said at once, with what to type."""

import socket
from pathlib import Path

import pytest
from deadlines import within
from huggingface_hub import constants
from tokenizers import Tokenizer, models

from aboard.diagnoses import AboardError
from aboard.trainer.data.intake.hub_reachability import is_hub_reachable
from aboard.trainer.data.tokens.tokenizer_parts import load_vocabulary


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine whose hub takes no connection, with an empty cache; tests stand in an empty directory."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def refused(name: str) -> AboardError:
    with within(4), pytest.raises(AboardError) as error:
        load_vocabulary(name)
    assert error.value.code == "data-tokenizer"
    return error.value


@pytest.mark.parametrize(
    "name", ["./model", "models/llama", "/no/such/model", "a/b/c", "../gone", "~/no-such-model-here"]
)
def test_a_path_that_is_not_there_is_no_name(away: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The hub is not asked for it, not even whether it can be reached; the error says which part is missing."""
    Path("models").mkdir()
    monkeypatch.setattr(constants, "ENDPOINT", None)
    error = refused(name)
    assert f"no tokenizer at '{name}'" in error.seen
    assert error.fix.startswith("ls /")


def test_what_is_missing_is_named(away: Path) -> None:
    """The deepest directory that is there, and what it lacks."""
    error = refused(f"{away}/model/v2")
    assert error.seen == f"there is no tokenizer at '{away}/model/v2': {away} has no 'model'"


@pytest.mark.parametrize("name", ["owner/name", "gpt-nothing"])
def test_a_name_out_of_reach(away: Path, name: str) -> None:
    """No network and not in the cache: said in a moment, with the command that fetches it."""
    error = refused(name)
    assert "nor in the cache, and the Hugging Face Hub can't be reached" in error.seen
    assert error.fix.startswith(f"hf download {name}    # on a machine with internet")


def test_offline_by_will(away: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has said HF_HUB_OFFLINE is believed: nothing is dialled."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "ENDPOINT", None)
    assert not is_hub_reachable()
    assert "hf download owner/name" in refused("owner/name").fix


def test_a_hub_that_answers_is_reachable(away: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that takes connections is enough to try; so is the proxy's, where one is set."""
    assert not is_hub_reachable()
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("no_proxy", "localhost")
        assert is_hub_reachable()


def saved(folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - a second, which other tests needn't wait for

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))  # noqa: S106 - a word, no secret
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


@pytest.mark.ci
def test_a_name_in_the_cache_needs_no_network(away: Path) -> None:
    """What was fetched before is found, by its name, without the hub."""
    saved(away / "hub/models--owner--name/snapshots/abc")
    (away / "hub/models--owner--name/refs").mkdir()
    (away / "hub/models--owner--name/refs/main").write_text("abc")
    assert load_vocabulary("owner/name").size == 2


@pytest.mark.ci
@pytest.mark.parametrize("name", ["tok", "./tok", "../here/tok"])
def test_a_directory_is_loaded_without_the_hub(away: Path, name: str) -> None:
    """By any way to write its path."""
    saved(Path("tok"))
    assert load_vocabulary(name).size == 2
