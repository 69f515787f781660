"""The command line as a person types it, in this process: a process of its own costs its imports each time."""

import io
import sys
from typing import NamedTuple

import pytest

from aboard.commands.command_line import main


class Ran(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: bytes
    err: bytes

    @property
    def stdout(self) -> str:
        return self.out.decode()

    @property
    def stderr(self) -> str:
        return self.err.decode()


def aboard(*argv: str, given: bytes = b"") -> Ran:
    source, out, err = io.BytesIO(given), io.BytesIO(), io.BytesIO()
    files = {"stdin": source, "stdout": out, "stderr": err}
    texts = {name: io.TextIOWrapper(file, "utf-8", write_through=True) for name, file in files.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["aboard", *argv])
        for name, text in texts.items():
            patch.setattr(sys, name, text)
        with pytest.raises(SystemExit) as ended:
            main()
    return Ran(int(ended.value.code or 0), out.getvalue(), err.getvalue())
