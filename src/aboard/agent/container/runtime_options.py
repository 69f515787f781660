"""Reads the options that a user adds to a runtime's command: Aboard doesn't repeat what they already say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_BINDS = ("--bind", "-B", "--volume", "-v")
_TARGETS = ("--tmpfs", "--scratch", "-S")
_MOUNT_TARGETS = ("target", "destination", "dst")


def has_option(options: Sequence[str], *names: str) -> bool:
    return any(option.partition("=")[0] in names for option in options)


def split_bind(bind: str) -> tuple[str, str, str]:
    """SOURCE[:TARGET[:MODE]]; without a target, it is the source."""
    source, _, rest = bind.partition(":")
    target, _, mode = rest.partition(":")
    return source, _strip_slashes(target or source), mode


def list_bind_targets(options: Sequence[str]) -> set[str]:
    """The paths inside that the options bind: Docker refuses a second bind of the same path."""
    targets: set[str] = set()
    for name, value in _read_values(options):
        if name in _BINDS:
            # Only Apptainer accepts several in one option.
            targets.update(split_bind(part)[1] for part in value.split(","))
        elif name in _TARGETS:
            targets.add(_strip_slashes(value.partition(":")[0]))
        elif name == "--mount":
            fields = (part.partition("=") for part in value.split(","))
            targets.update(_strip_slashes(field) for key, _, field in fields if key in _MOUNT_TARGETS)
    return targets


def _read_values(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options that bind something, with their values: `--bind X`, `--bind=X`, `-B X`, `-BX`."""
    names = (*_BINDS, *_TARGETS, "--mount")
    for index, option in enumerate(options):
        name, equals, value = option.partition("=")
        if equals and name in names:
            yield name, value
        elif option in names:
            yield option, options[index + 1] if index + 1 < len(options) else ""
        elif option[:2] in names and len(option) > 2:  # noqa: PLR2004 - a dash and a letter
            yield option[:2], option[2:]


def _strip_slashes(path: str) -> str:
    return path.rstrip("/") or path
