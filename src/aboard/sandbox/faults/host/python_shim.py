"""A replacement for a host's python3 that pretends another version or missing modules; it is copied there alone."""

import runpy
import sys
from typing import Any

WITH_ARGUMENT = "WX"


def run_as_another(version: str, without: str) -> None:
    """Parses the command line like Python, and runs it with another version or with modules missing."""
    arguments = sys.argv[1:]
    if not any(argument.startswith("-") and "S" in argument for argument in arguments[:1]):
        import site  # noqa: PLC0415 - runs as a program of its own, in a host

        site.main()
    if version:
        _pretend_version(version)
    if without:
        sys.meta_path.insert(0, _Missing(without.split(",")))
    while arguments and arguments[0].startswith("-") and arguments[0] != "-":
        flag = arguments.pop(0)
        if flag in {"-V", "--version"}:
            print("Python", sys.version.split()[0])  # noqa: T201 - it plays python3 --version
            return None
        if flag[-1] == "c":
            return _run_text(arguments.pop(0), ["-c", *arguments])
        if flag[-1] == "m":
            sys.argv = arguments
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
            return None
        if flag[-1] in WITH_ARGUMENT:
            arguments.pop(0)
    if arguments and arguments[0] != "-":
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
        return None
    return _run_text(sys.stdin.read(), arguments or [""])


class _Missing:
    """An import hook that raises ModuleNotFoundError for the given modules."""

    def __init__(self, names: "list[str]") -> None:
        self.names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class _Version(tuple):  # type: ignore[type-arg]
    """Stands in for sys.version_info, whose type cannot be instantiated."""

    __slots__ = ()

    major = property(lambda self: self[0])
    minor = property(lambda self: self[1])
    micro = property(lambda self: self[2])
    releaselevel = property(lambda self: self[3])
    serial = property(lambda self: self[4])


def _pretend_version(version: str) -> None:
    numbers = [int(part) for part in version.split(".")] + [0, 0]
    pretended: Any = _Version((*numbers[:3], "final", 0))
    sys.version_info = pretended
    sys.version = f"{version} (default, Jan  1 2022, 00:00:00) \n[GCC 8.3.0]"
    sys.hexversion = numbers[0] << 24 | numbers[1] << 16 | numbers[2] << 8 | 0xF0


def _run_text(text: str, argv: "list[str]") -> None:
    sys.argv = argv
    main = sys.modules["__main__"].__dict__
    exec(compile(text, "<string>", "exec"), main)  # noqa: S102 - it plays python3 -c
