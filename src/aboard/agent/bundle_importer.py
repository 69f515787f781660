"""The first code on a node: an importer of the agent's sources, which came over the transport.

A module is compiled only when it is imported, so that a check doesn't pay for the supervisor. This file depends on no
other: the transport sends it first, followed by the sources and the call that starts the bridge.
"""

from __future__ import annotations

import marshal
import sys
from _frozen_importlib_external import MAGIC_NUMBER  # importlib.util has it too, but costs 5 ms to import

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

# importlib.machinery would cost 2 ms to import; every module carries the class anyway.
ModuleSpec: Any = type(sys.__spec__)


class BundleImporter:
    """Finds and loads modules from a dictionary of sources."""

    def __init__(self, sources: dict[str, str], packages: set[str], compiled: dict[str, bytes], magic: bytes) -> None:
        self._sources = sources
        self._packages = packages
        # Bytecode is valid for one version only, as in a .pyc file.
        self._compiled = compiled if magic == MAGIC_NUMBER else {}

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        if name in self._sources:
            return ModuleSpec(name, self, is_package=name in self._packages)
        return None

    def get_source(self, name: str) -> str:
        """The source of a module, to be passed on: ranks get the beacon from here."""
        return self._sources[name]

    def create_module(self, _spec: Any) -> None:
        """Lets Python create the module (PEP 451)."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name in self._compiled:
            code = marshal.loads(self._compiled[name])  # noqa: S302 - from our own head, over the stream that started us
        else:
            code = compile(self._sources[name], "<%s>" % name, "exec")
        exec(code, module.__dict__)  # noqa: S102 - this is an importer
