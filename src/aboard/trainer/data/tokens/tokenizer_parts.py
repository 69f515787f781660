"""The parts of a tokenizer that encoding needs: the fast tokenizer, its special tokens, its chat templates."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from aboard.core.text.hub_names import is_path, looks_like_path, strip_hub_prefix
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import escape_text
from aboard.foreign_files import ForeignFileError, find_link_target
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.intake import model_code
from aboard.trainer.data.intake.hub_reachability import is_hub_reachable
from aboard.trainer.data.intake.model_code import TOKENIZER_SETTINGS, find_code_error
from aboard.trainer.data.tokens.text_growth import refuse_growth
from aboard.trainer.diagnoses import data

# Every tokenizer directory has one of these.
_TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json")
# Arguments of tokenizers that may be files, beside all that end in `_file`.
_FILE_ARGUMENTS = ("vocab", "merges", "init_inputs", "tokenizer_object")
_TEXT_SUFFIXES = (".json", ".jinja", ".txt", ".model")
# A tokenizer encodes this to tokens that are not the start or end of others.
_PROBE_TEXT = "a"


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Plain values, so that a worker gets it by pickle and needs neither torch nor the tokenizer's files.

    `before` are the tokens that the tokenizer itself puts before a text (usually one BOS); `names` are the variables of
    templates (bos_token: <s>); `plain` and `with_tools` are its chat templates.
    """

    json: str
    names: Mapping[str, str]
    specials: Mapping[str, int]
    before: tuple[int, ...]
    bos: int | None
    eos: int | None
    pad: int | None
    size: int
    plain: str | None
    with_tools: str | None


def load_vocabulary(tokenizer: Any, *, trust_remote_code: bool = False) -> Vocabulary:
    """Loads the vocabulary of a path, a hub name, or a transformers tokenizer."""
    loaded = (
        _load_tokenizer(tokenizer, trust_remote_code=trust_remote_code) if isinstance(tokenizer, str) else tokenizer
    )
    if not getattr(loaded, "is_fast", False):
        seen = f"the tokenizer {type(loaded).__name__} is not a fast tokenizer (it has no tokenizer.json)"
        raise AboardError(data.TOKENIZER, seen, "slow")
    backend = tokenizers.Tokenizer.from_str(loaded.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    added = backend.get_added_tokens_decoder()
    specials = {token.content: number for number, token in added.items() if token.special}
    plain, with_tools = _split_templates(loaded.chat_template)
    return Vocabulary(
        json=backend.to_str(),
        names={name: str(token) for name, token in loaded.special_tokens_map.items() if isinstance(token, str)},
        specials=specials,
        before=_find_prefix_tokens(backend),
        bos=loaded.bos_token_id,
        eos=loaded.eos_token_id,
        pad=loaded.pad_token_id,
        size=max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        plain=plain,
        with_tools=with_tools,
    )


def _load_tokenizer(name: str, *, trust_remote_code: bool) -> Any:
    """Loads from a directory or the hub; a missing tokenizer is detected before anything slow starts."""
    path = Path(name).expanduser()
    where: Path | str = path
    if not path.exists():
        if is_path(name) or ("/" in name and path.parent.is_dir()):
            raise _make_missing_error(name)
        if looks_like_path(name):
            seen = f"there is no tokenizer at '{escape_text(name)}', and the name looks like a path"
            raise AboardError(data.TOKENIZER, seen, "unclear", name=name)
        name = strip_hub_prefix(name)
        if is_path(name):
            seen = f"'{escape_text(name)}' is a path, and no name on the Hugging Face Hub"
            raise AboardError(data.TOKENIZER, seen, "missing", folder=Path(name).parent)
        found = name if is_hub_reachable() else _find_cached(name)
        if found is None:
            raise _make_unreachable_error(name)
        where = found
    _refuse_foreign_names(_find_file(where, TOKENIZER_SETTINGS))
    _refuse_foreign_links(where)
    vocabulary = _find_file(where, "tokenizer.json")
    if vocabulary is not None:
        refuse_growth(vocabulary)
    from transformers import AutoTokenizer  # noqa: PLC0415 - brings torch with it, which takes seconds

    try:
        return AutoTokenizer.from_pretrained(where, trust_remote_code=trust_remote_code)
    except Exception as error:  # transformers raises whatever its downloader, its parsers and its models raise
        if "trust_remote_code" in str(error):
            code_error = find_code_error(path, TOKENIZER_SETTINGS) or find_code_error(path)
            if code_error is not None:
                raise code_error from error
        seen = f"can't load a tokenizer from '{escape_text(name)}': {escape_text(' '.join(str(error).split()), 300)}"
        # A shell doesn't expand what is quoted.
        folder = path if name.startswith("~") else name
        raise AboardError(data.TOKENIZER, seen, "broken", file=f"{folder}/tokenizer.json") from error


def _find_file(where: Path | str, file: str) -> Path | None:
    """A file of a tokenizer, which is looked at before it is loaded; None if the hub has none."""
    if isinstance(where, Path):
        return where / file
    from huggingface_hub import hf_hub_download  # noqa: PLC0415 - as in `hub_reachable`

    try:
        return Path(hf_hub_download(where, file))
    except Exception:  # noqa: BLE001 - whatever its downloader raises: the loader reports it
        return None


def _refuse_foreign_links(where: Path | str) -> None:
    """A template or a vocabulary that is a link to a file of the user would put that file into every row."""
    # Templates may be in a directory of their own.
    for file in sorted([*where.glob("*"), *where.glob("*/*.jinja")]) if isinstance(where, Path) else ():
        try:
            if file.is_symlink() and file.suffix in _TEXT_SUFFIXES:
                find_link_target(file, in_model=True)
        except ForeignFileError as error:
            seen = f"{escape_text(str(file), 400)} can't be read: {error.strerror}"
            raise AboardError(data.TOKENIZER, seen, "broken", file=file) from None


def _refuse_foreign_names(file: Path | None) -> None:
    """The settings are arguments of the tokenizer's class, which opens the files that they name, wherever they are."""
    if file is None:
        return
    folder = file.parent
    try:
        settings = model_code.read_settings(file)
    except (OSError, ValueError, RecursionError):  # loading it says why
        return
    for key, value in settings.items():
        for name in value if isinstance(value, list) else (value,):
            is_file = key in _FILE_ARGUMENTS or key.endswith("_file")
            if is_file and isinstance(name, str) and name and not _is_own_file(Path(name), folder):
                seen = f"{folder}/{TOKENIZER_SETTINGS} names a file outside of its directory: {escape_text(key, 100)}"
                raise AboardError(data.TOKENIZER, seen, "broken", file=f"{folder}/{TOKENIZER_SETTINGS}")


def _is_own_file(path: Path, folder: Path) -> bool:
    """Also true of a path that doesn't exist: many settings have one of their author's machine."""
    try:
        return not os.path.lexists(path) or path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):
        return False


def _make_missing_error(name: str) -> AboardError:
    whole = Path(name).expanduser().absolute()
    existing = next(parent for parent in whole.parents if parent.exists())
    seen = (
        f"there is no tokenizer at '{escape_text(name)}': {existing} has no"
        f" '{escape_text(whole.relative_to(existing).parts[0])}'"
    )
    return AboardError(data.TOKENIZER, seen, "missing", folder=existing)


def _find_cached(name: str) -> Path | None:
    """The directory in the hub cache with the files fetched under this name."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - as in `hub_reachable`
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415 - as above

    try:
        cached = [try_to_load_from_cache(name, file) for file in _TOKENIZER_FILES]
    except HFValidationError:
        return None
    return next((Path(file).parent for file in cached if isinstance(file, str)), None)


def _make_unreachable_error(name: str) -> AboardError:
    seen = (
        f"the tokenizer '{escape_text(name)}' is neither a local directory nor in the cache, and the Hugging Face"
        " Hub can't be reached"
    )
    return AboardError(data.TOKENIZER, seen, "far", name=name)


def _split_templates(chat_template: object) -> tuple[str | None, str | None]:
    """The template for plain conversations and the one for those with tools, which are usually the same."""
    if isinstance(chat_template, dict):
        plain = chat_template.get("default")
        return plain, chat_template.get("tool_use", plain)
    plain = chat_template if isinstance(chat_template, str) else None
    return plain, plain


def _find_prefix_tokens(backend: tokenizers.Tokenizer) -> tuple[int, ...]:
    alone = backend.encode(_PROBE_TEXT, add_special_tokens=False).ids
    whole = backend.encode(_PROBE_TEXT, add_special_tokens=True).ids
    for start in range(len(whole)):
        if whole[start : start + len(alone)] == alone:
            return tuple(whole[:start])
    return ()
