"""Files that Aboard finds in the working directory, and the user's record of what they may set (decision 0032).

A record is a file in the user's state directory. Its name is the hash of a path and of the settings there that need
consent; it contains the path, for `aboard allow --list`.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from aboard.agent.private_folders import make_private_folder
from aboard.config.consent_rules import GuardedSetting, is_credential, list_guarded_settings, list_guarded_variables
from aboard.config.input_files import DEFAULT_FILE, MAX_BYTES, FoundFile, read_text
from aboard.config.this_machine import get_state_folder
from aboard.config.yaml_tree import Table, parse_tree
from aboard.core.plan.deepspeed_env_file import parse_env_file
from aboard.diagnoses import AboardError, Fix
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import configuration

DEFAULT_ENV_FILE = ".deepspeed_env"
FOUND_FILES = (FoundFile(DEFAULT_FILE), FoundFile(DEFAULT_ENV_FILE))
_SHOWN_SETTINGS = 20
_VALUE_LENGTH = 200


def read_config_tree(file: str, *, fix: Fix, base: str = ".") -> Table:
    """The file's tree; of a file that was found, only if the user allowed what needs consent there."""
    tree = parse_tree(read_text(file, fix=fix), file=file, base=base)
    if isinstance(file, FoundFile):
        require_allowed(file, list_guarded_settings(tree, Path(file).parent), os.environ)
    return tree


def read_launcher_file(file: str, *, fix: Fix, allow_file: bool = False) -> str:
    """The text of a file for a pasted command; DeepSpeed finds .deepspeed_env by itself, also outside of the home."""
    is_found = Path(file).name == DEFAULT_ENV_FILE and Path(file).parent.resolve() != Path.home().resolve()
    text = read_text(FoundFile(file) if is_found else file, fix=fix)
    if is_found and not allow_file:
        require_allowed(file, list_guarded_variables(parse_env_file(text, where=file), file), os.environ)
    return text


def list_settings_to_allow(file: str, *, fix: Fix) -> list[GuardedSetting]:
    """What `aboard allow` allows."""
    text = read_text(file, fix=fix)
    if Path(file).name == DEFAULT_ENV_FILE:
        return list_guarded_variables(parse_env_file(text, where=file), file)
    return list_guarded_settings(parse_tree(text, file=file), Path(file).parent)


def require_allowed(file: str, settings: Sequence[GuardedSetting], environ: Mapping[str, str]) -> None:
    """Raises unless the user allowed these settings of this file. What was parsed is compared: no second reading."""
    if settings and not is_allowed(file, compute_digest(settings), environ):
        shown = describe_settings(settings[:_SHOWN_SETTINGS], _VALUE_LENGTH)
        if len(settings) > _SHOWN_SETTINGS:
            shown.append(f"and {len(settings) - _SHOWN_SETTINGS} more")
        lines = "".join(f"\n{line}" for line in shown)
        seen = f"{escape_text(file, 200)} has settings that need your consent, and you have not allowed them:{lines}"
        raise AboardError(configuration.NOT_ALLOWED, seen + describe_owner(file), file=file)


def describe_settings(settings: Sequence[GuardedSetting], limit: int = MAX_BYTES) -> list[str]:
    """Two safe lines for each setting: the setting, whose value is cut at the limit, and what it makes possible."""
    return [
        line
        for setting in settings
        for line in (
            f"{escape_text(setting.where, 200)}  {escape_text(setting.key)}: {_show_value(setting, limit)}",
            f"    {setting.effect}",
        )
    ]


def _show_value(setting: GuardedSetting, limit: int) -> str:
    """Not that of a credential, or an address where its variable should be: the question may be in a log."""
    section, _, name = setting.key.rpartition(".")
    # A key such as data.tokenizer is no variable.
    is_hidden = (not section or section.endswith(".env")) and is_credential(name)
    is_hidden |= setting.key == "notify.webhook" and "://" in str(setting.value)
    return "(hidden)" if is_hidden else escape_text(str(setting.value), limit)


def describe_owner(file: str) -> str:
    """A sentence about a file that somebody else owns."""
    with suppress(OSError):
        if (owner := Path(file).stat().st_uid) not in (os.geteuid(), 0):
            return f"\n    the file belongs to another user: uid {owner}"
    return ""


def compute_digest(settings: Sequence[GuardedSetting]) -> str:
    """The hash of what the settings say; their positions and all other content of the file may change."""
    from hashlib import sha256  # noqa: PLC0415 - most files need no consent
    from json import dumps  # noqa: PLC0415 - as above

    content = dumps([[setting.key, setting.value] for setting in settings], sort_keys=True)
    return sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def is_allowed(file: str, digest: str, environ: Mapping[str, str]) -> bool:
    """Whether the user's own record, which nobody else could have written, allows these settings of this file."""
    record = _find_record(file, digest, environ)
    try:
        return _is_own(record.lstat(), stat.S_ISREG) and _is_own(record.parent.lstat(), stat.S_ISDIR)
    except OSError:
        return False


def record_allowed(file: str, digest: str, environ: Mapping[str, str]) -> None:
    """Allows these settings of this file from now on."""
    record = _find_record(file, digest, environ)
    try:
        make_private_folder(record.parent)
        with suppress(FileExistsError):
            handle = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "wb") as file_:
                file_.write(os.fsencode(f"{resolve_path(file)}\n"))
    except OSError as error:
        seen = f"can't write {escape_text(str(record.parent), 200)}: {error.strerror}"
        raise AboardError(configuration.ALLOW_RECORD, seen, folder=record.parent) from None
    if not is_allowed(file, digest, environ):
        seen = f"others can write to {escape_text(str(record.parent), 200)}, or own it"
        raise AboardError(configuration.ALLOW_RECORD, seen, folder=record.parent)


def list_allowed(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    """The path of each allowed file, and its record."""
    return sorted(_read_records(_find_folder(environ)))


def list_confirmed_digests(environ: Mapping[str, str]) -> list[str]:
    """`FILE=DIGEST` for each file in the working directory that the user allowed, for the same command elsewhere."""
    confirmed = []
    for file in FOUND_FILES:
        with suppress(AboardError):
            settings = list_settings_to_allow(file, fix=configuration.FILE.fix("left-out"))
            if settings and is_allowed(file, digest := compute_digest(settings), environ):
                confirmed.append(f"{file}={digest}")
    return confirmed


def _read_records(folder: Path) -> Iterator[tuple[str, Path]]:
    with suppress(OSError):
        for record in folder.iterdir():
            with suppress(OSError):
                yield os.fsdecode(record.read_bytes()).rstrip("\n"), record


def _find_folder(environ: Mapping[str, str]) -> Path:
    """In the same state directory as the runs."""
    return get_state_folder(environ) / "allowed"


def _find_record(file: str, digest: str, environ: Mapping[str, str]) -> Path:
    from hashlib import sha256  # noqa: PLC0415 - most files need no consent

    return _find_folder(environ) / sha256(os.fsencode(f"{resolve_path(file)}\0{digest}")).hexdigest()


def resolve_path(file: str) -> str:
    """Without symlinks in the directory; a link to another file is a file of its own."""
    path = Path(file)
    return str(path.parent.resolve() / path.name)


def _is_own(status: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    return is_kind(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
