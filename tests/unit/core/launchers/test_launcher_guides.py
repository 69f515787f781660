"""The commands of the five public multi-node guides, each with all that Aboard makes of it."""

from pathlib import Path

import pytest
from launcher_texts import as_text, pasted

from aboard.core.cluster.hostfile import parse_hostfile
from aboard.core.cluster.node_filters import filter_nodes
from aboard.core.launchers.node_selection import select_nodes

GOLDEN = Path(__file__).parents[2] / "golden" / "paste"
GUIDES = sorted((GOLDEN / "guides").glob("*.txt"))
# The files and variables that the guides tell a person to write first.
FILES = {
    "llama-x": {
        "/path/to/Llama-X/src/configs/hostfile": "worker-0 slots=8\nworker-1 slots=8\nworker-2 slots=8\n",
        "~/.deepspeed_env": "NCCL_DEBUG=INFO\nNCCL_ASYNC_ERROR_HANDLING=1\nNCCL_BUFFSIZE=2097152\n",
    },
    "lmflow": {
        "configs/hostfile": "100.100.100.1 slots=8\n100.100.100.2 slots=8\n100.100.105.1 slots=4\n",
    },
    "gpt-neox": {"/job/hostfile": "localhost slots=4\n104.171.200.199 slots=4\n"},
    "accelerate": {"fsdp1.yaml": (GOLDEN / "env" / "fsdp1.yaml").read_text("utf-8")},
}
ENVIRON = {
    "lmflow": {"NCCL_SOCKET_IFNAME": "eth0", "PDSH_RCMD_TYPE": "ssh"},
    "gpt-neox": {"DSHPATH": "/usr/bin", "PDSH_RCMD_TYPE": "ssh"},
    "accelerate": {"NCCL_DEBUG": "INFO", "HUGGING_FACE_HUB_TOKEN": "hf_none"},
}


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_what_becomes_of_the_command(path: Path) -> None:
    """The command as the guide has it, its shell variables filled in, and the whole request or refusal behind it."""
    text = path.read_text("utf-8")
    command = text.partition("\n\n")[0].removeprefix("$ ").replace("\\\n", " ")
    guide = path.stem.removesuffix("-inside")
    assert f"$ {_as_typed(text)}\n\n{as_text(command, FILES.get(guide, {}), ENVIRON.get(guide))}" == text


def test_two_of_three_lines() -> None:
    """Llama-X asks for 2 nodes of a hostfile with 3: the first two, all 8 slots of each."""
    ((where, hosts), _) = FILES["llama-x"].items()
    got = pasted(f"deepspeed --num_gpus 8 --num_nodes 2 --hostfile {where} train.py", files=FILES["llama-x"])
    nodes = select_nodes(got, filter_nodes(parse_hostfile(hosts), include=got.include, exclude=got.exclude))
    assert [node.name for node in nodes] == ["worker-0", "worker-1"]


def _as_typed(text: str) -> str:
    return text.partition("\n\n")[0].removeprefix("$ ").rstrip("\n")
