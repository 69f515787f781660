"""The command in a batch script: the one that the user typed, without what belongs to its submission."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import NoReturn

from aboard.core.cluster.interpreter import NO_ENV
from aboard.core.secrets.secret_names import is_secret
from aboard.core.slurm.batch_script import list_request_options
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.core.text.input_text import format_count
from aboard.core.text.shell_quoting import quote_typed_words
from aboard.diagnoses import AboardError, InputError
from aboard.diagnoses.slurm import submission
from aboard.lazy_dataclass import dataclass

_SETTINGS = ("--env", "--set")
_NODE_VARIABLE = "cluster.env."
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
# The short options without a value, which may be written as one word.
_SHORT_FLAGS = re.compile(r"-[dm]+")


@dataclass(frozen=True, kw_only=True)
class ConductorCommand:
    """The words after `aboard`, and the secrets among them by name: they travel in the environment of sbatch."""

    words: tuple[str, ...]
    secrets: Mapping[str, str] = field(default_factory=lambda: NO_ENV, repr=False)


def build_conductor_command(
    argv: Sequence[str], *, run: str | None, resubmits: int, allowed: Sequence[str] = ()
) -> ConductorCommand:
    """The typed words for a job: `--run` names its run, secrets are left out, and it stays in the foreground.

    A training run may be continued in as many further jobs as `resubmits`. `allowed` are the files in the directory
    that the user has allowed, with their digests: the job does not ask again.
    """
    verb, *rest = argv
    end = rest.index("--") if "--" in rest else len(rest)
    secrets: dict[str, str] = {}
    named: tuple[str, ...] = ("--run", run) if run is not None else ()
    if resubmits and verb == "train":
        named += ("--resubmit", str(resubmits))
    named += tuple(word for each in allowed for word in ("--allowed", each))
    words = _drop_submission(_take_out_secrets(rest[:end], secrets))
    _refuse_pasted_secrets(rest[end + 1 :])
    return ConductorCommand(words=(verb, *named, *words, *rest[end:]), secrets=secrets)


def refuse_outside_job(settings: SlurmSettings, argv: Sequence[str]) -> NoReturn:
    """Refuses a command that needs the nodes of a job before there is one."""
    seen = f"cluster.slurm asks for {format_count(settings.nodes, 'node')}, but this command does not run in a job"
    salloc = quote_typed_words(["salloc", "--no-kill", *list_request_options(settings)])
    raise AboardError(submission.OUTSIDE, seen, salloc=salloc, command=quote_typed_words(["aboard", *argv]))


def _take_out_secrets(words: Sequence[str], secrets: dict[str, str]) -> Iterator[str]:
    """Replaces `--env NAME=VALUE` by `--env NAME`, and `--set cluster.env.NAME=VALUE` by the same."""
    option = ""
    for word in words:
        if option:
            yield from _replace_secret(option, word, secrets)
            option = ""
        elif word in _SETTINGS:
            option = word
        elif word.startswith(("--env=", "--set=")):
            name, _, setting = word.partition("=")
            yield from _replace_secret(name, setting, secrets)
        else:
            yield word


def _replace_secret(option: str, setting: str, secrets: dict[str, str]) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    name = key.rpartition(".")[2]
    if not equals or not value or not is_secret(name):
        return option, setting
    if option == "--set" and key != f"{_NODE_VARIABLE}{name}":
        seen = "its value may be a secret, and a batch script is no place for one"
        raise InputError.of(submission.SECRET, f"--set {key}", seen, "file", key=key)
    secrets[name] = value
    return "--env", name


def _refuse_pasted_secrets(command: Sequence[str]) -> None:
    """Refuses `NAME=VALUE srun …` and `--export=ALL,NAME=VALUE` if the value may be a secret."""
    before = itertools.takewhile(lambda word: _ASSIGNMENT.match(word) or word == "env", command)
    exported = (item for word in command if word.startswith("--export=") for item in word.split("=", 1)[1].split(","))
    for text in (*before, *exported):
        name, equals, value = text.partition("=")
        if equals and value and is_secret(name):
            seen = "its value may be a secret, and a batch script is no place for one"
            raise InputError.of(submission.SECRET, name, seen, "variable", name=name)


def _drop_submission(words: Iterator[str]) -> Iterator[str]:
    for word in words:
        if word == "--as":
            next(words, None)
        elif _SHORT_FLAGS.fullmatch(word):
            if flags := word.replace("d", "")[1:]:
                yield f"-{flags}"
        elif word not in ("--detach", "--dry-run") and not word.startswith("--as="):
            yield word
