"""Attacks by a node or a rank on a resume: markers and answers that are made to stop it, or to poison it."""

import asyncio
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pytest
from deadlines import within
from node_checkpoints import HALVES, OUT, record, save, share

from aboard.commands.sync.download import NodeDownload
from aboard.commands.train.checkpoints.pass_parts import PartWish, pass_parts
from aboard.durable_files import FileEntry

pytestmark = pytest.mark.ci


def craft_marker(serial: int, fields: str, files: str) -> bytes:
    """A marker whose first line has the right hash of whatever it contains."""
    head = f'"format":"aboard-checkpoint",\n"version":1,\n"serial":{serial},\n{fields}'
    body = f'{head}"tensors":{{\n\n}},\n"files":[\n{files}\n]}}\n'
    return f'{{"sha256":"{sha256(body.encode()).hexdigest()}",\n{body}'.encode()


DEEP = "[" * 100_000 + "]" * 100_000
FILE = '{"name":"rank-00000-000.safetensors","rank":0,"node":"n","disk":0,"bytes":1,"sha256":"' + "a" * 64 + '"'


CRAFTED = {
    "deep progress": (f'"progress":{DEEP},\n', ""),
    "deep file": ("", DEEP),
    "slices in a list": ("", '{"slices":[]}'),
    "file as list": ("", "[]"),
    "file as number": ("", "7"),
    "deep box": ("", FILE + ',"slices":{"model/w":' + DEEP + "}}"),
    "box as number": ("", FILE + ',"slices":{"model/w":7}}'),
    "file without a name": ("", '{"slices":{}}'),
}


@pytest.mark.parametrize("crafted", CRAFTED)
def test_a_crafted_marker_is_named_and_the_good_checkpoint_is_found(tmp_path: Path, crafted: str) -> None:
    """Deep nesting and wrong types stop no reader: the node still counts as reachable, and its parts are used."""
    save(tmp_path, 4, 2)
    poisoned = tmp_path / "n2" / OUT / "step-000009"
    poisoned.mkdir()
    (poisoned / "manifest.json").write_bytes(craft_marker(9, *CRAFTED[crafted]))
    done = share(tmp_path, HALVES, recorded=record())
    assert done is not None
    assert done.name == "step-000004"
    assert done.notes == ("step-000009 is skipped: its manifest.json on n2 is damaged",)


def test_a_node_that_never_gets_further_is_not_waited_for(tmp_path: Path) -> None:
    """Its copier reports the same for ever: what it lacks is left to the head after the stated time."""

    class StuckNode:
        async def find_address(self) -> str:
            return "127.0.0.1"

        async def ask_copier(self, _folder: str, do: str, **_fields: object) -> Mapping[str, Any]:
            replies = {"open": {"address": "127.0.0.1", "port": 9}, "status": {"left": 1, "moved": 7, "lacking": []}}
            return replies.get(do, {})

    files = [FileEntry(name=f"rank-0000{number}-000.safetensors", bytes=1, sha256="a" * 64) for number in (0, 1)]
    wishes = {"n1": [PartWish(file=file, sources=["n2"]) for file in files]}
    nodes = cast("Mapping[str, NodeDownload]", {"n1": StuckNode(), "n2": StuckNode()})

    async def main() -> dict[str, set[str]]:
        return await pass_parts(nodes, "~/out", "step-000004", wishes, None, patience=0.01)

    with within(30):
        assert asyncio.run(asyncio.wait_for(main(), 60)) == {"n1": {files[0].name}}
