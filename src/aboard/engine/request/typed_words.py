"""The command line as typed: without secrets and without Aboard's own options, and hidden from other users."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from aboard.core.secrets.secret_names import is_secret
from aboard.core.text.shell_quoting import quote_typed_words
from aboard.diagnoses import Shell

# The options that only scripts written by Aboard use. FILE=DIGEST: what the user had allowed where they typed it.
RUN, RESUBMIT, ALLOWED = "--run", "--resubmit", "--allowed"
_OWN_OPTIONS = (RUN, RESUBMIT, ALLOWED)
# proc(5): arg_start and arg_end are the fields 48 and 49; the third is the first one after the name.
_ARGUMENTS = slice(48 - 3, 50 - 3)


def format_typed_command(argv: Sequence[str]) -> Shell:
    """The typed command, quoted for the shell, without the values of secrets."""
    return quote_typed_words(list_typed_words(argv))


def list_typed_words(argv: Sequence[str]) -> list[str]:
    """The typed command; a secret's value is left out, and `--env NAME` reads it from here."""
    words = remove_run_options(argv)
    end = words.index("--") if "--" in words else len(words)
    for place, word in enumerate(words[:end]):
        option, name, value = _parse_setting(words[place - 1] if place else "", word)
        if value and is_secret(name.rpartition(".")[2]):
            words[place] = word.removesuffix(f"={value}") + ("=…" if option == "--set" else "")
    return ["aboard", *words]


def remove_run_options(argv: Sequence[str]) -> list[str]:
    """The words that the user typed."""
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    own = [
        place
        for place, word in enumerate(words[:end])
        if word in _OWN_OPTIONS or (place and words[place - 1] in _OWN_OPTIONS)
    ]
    return [word for place, word in enumerate(words) if place not in own]


def hide_values() -> None:
    """Overwrites the values of --env and --set in this process's memory, which ps reads; its forks inherit that.

    sys.argv keeps them. Until here, a few milliseconds after the start, they can be read.
    """
    import ctypes  # noqa: PLC0415 - only for these options

    fields = Path("/proc/self/stat").read_bytes().rpartition(b") ")[2].split()
    start, end = map(int, fields[_ARGUMENTS])
    words = ctypes.string_at(start, end - start).split(b"\0")
    for position, length in find_values([word.decode("utf-8", "surrogateescape") for word in words]):
        ctypes.memset(start + position, ord("x"), length)


def find_values(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The position and length in bytes of each value of a variable, or of a setting that may be a secret."""
    position, before = 0, ""
    for word in words:
        if word == "--":
            return
        option, name, value = _parse_setting(before, word)
        size = len(word.encode("utf-8", "surrogateescape"))
        if value and (option == "--env" or ".env." in name or is_secret(name)):
            length = len(value.encode("utf-8", "surrogateescape"))
            yield position + size - length, length
        before = word
        position += size + 1


def _parse_setting(before: str, word: str) -> tuple[str, str, str]:
    """The option, name and value of `--env NAME=VALUE` or `--env=NAME=VALUE`, and of the same with `--set`."""
    option, _, rest = word.partition("=")
    if option not in ("--env", "--set"):
        option, rest = before, word
    name, _, value = rest.partition("=")
    return (option, name, value) if option in ("--env", "--set") else ("", "", "")
