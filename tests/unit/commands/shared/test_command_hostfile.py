"""The hostfile of a pasted deepspeed command, when the nodes are named before `--`."""

from pathlib import Path

import pytest

from aboard.engine.request.node_arguments import NodeArguments
from aboard.engine.request.typed_launch import TypedLaunch


def read(nodes: tuple[str, ...], hostfile: str | None = None) -> tuple[list[int | None], str]:
    where = NodeArguments(nodes=nodes, hostfile=hostfile, include="", exclude="", sets=())
    words = ("deepspeed", "--hostfile", "hosts", "train.py")
    _request, cluster, notes = TypedLaunch(where=where, command=words).read_command()
    return [node.slots for node in cluster], "\n".join(notes)


@pytest.fixture(autouse=True)
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text("n1 slots=2\nn2 slots=2\nn9 slots=8\n")
    (tmp_path / "mine").write_text("n1 slots=4\nn2 slots=2\n")


def test_named_nodes_have_the_slots_of_the_hostfile() -> None:
    """`aboard launch n1 n2 -- deepspeed --hostfile hosts` starts as many ranks there as deepspeed would."""
    slots, notes = read(("n1", "n2"))
    assert slots == [2, 2]
    assert "hosts does not choose the nodes, since they were named before `--`.\nn[1-2]: slots as in hosts." in notes


def test_a_node_that_the_hostfile_lacks_is_named() -> None:
    """Its slots stay unknown, and the user learns why."""
    slots, notes = read(("n1", "n3"))
    assert slots == [2, None]
    assert "hosts does not list n3" in notes


def test_aboards_own_hostfile_wins_with_a_note() -> None:
    """Both give slots; those that were typed for Aboard count, and the difference is said."""
    slots, notes = read((), "mine")
    assert slots == [4, 2]
    assert "n1: other slots than in hosts" in notes
    assert "n2" not in notes


def test_the_hostfile_alone_still_chooses_the_nodes() -> None:
    """Without names before `--`, nothing changes."""
    slots, notes = read(())
    assert slots == [2, 2, 8]
    assert "does not choose" not in notes


def test_nodes_are_dialled_first_unless_the_command_may_name_others() -> None:
    """A script and torchrun run on the nodes of the configuration; deepspeed, accelerate and srun have their own."""
    dialled = {
        command: [
            node.name
            for node in TypedLaunch(
                where=NodeArguments(nodes=("n1", "n2"), hostfile=None, include="", exclude="", sets=()),
                command=tuple(command.split()),
            ).guess()
        ]
        for command in (
            "python train.py",
            "bash run.sh",
            "A=1 torchrun train.py",
            "train.py deepspeed",
            "A=1 /opt/bin/deepspeed train.py",
            "python -m accelerate.commands.launch train.py",
            "apptainer exec x.sif ds train.py",
            "srun torchrun train.py",
        )
    }
    assert [command for command, names in dialled.items() if names == ["n1", "n2"]] == list(dialled)[:4]
    assert {tuple(names) for names in list(dialled.values())[4:]} == {()}
