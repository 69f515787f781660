"""The texts of a sandbox's Slurm, and what is said when a part of it isn't installed."""

from pathlib import Path

import pytest

from aboard.diagnoses import SandboxError
from aboard.sandbox.layout import SandboxLayout
from aboard.sandbox.requirements import require_slurm
from aboard.sandbox.slurm import config_files, wait_until_ready

GOLDEN = Path(__file__).parents[2] / "golden"


def layout(*, nodes: int = 4, slots: int = 2) -> SandboxLayout:
    return SandboxLayout(name="practice", nodes=nodes, slots=slots, fabric=False, slurm=True)


def test_slurm_conf_is_the_golden_one() -> None:
    """Every line of slurm.conf was tried on real hosts: a change is seen as one."""
    assert config_files.format_slurm_conf(layout(), cpus=2, memory=4000) == (GOLDEN / "slurm.conf").read_text()


def test_gres_conf_is_the_golden_one() -> None:
    """Every slot is a device file of its own."""
    assert config_files.format_gres_conf(layout()) == (GOLDEN / "gres.conf").read_text()


def test_one_node_with_one_slot_has_no_ranges() -> None:
    """A range of one is written as the one."""
    small = layout(nodes=1, slots=1)
    assert "NodeName=n1 CPUs=2 " in config_files.format_slurm_conf(small, cpus=2, memory=4000)
    assert config_files.format_gres_conf(small).endswith("NodeName=n1 Name=gpu File=/dev/sandbox-gpu0\n")


def test_the_device_files_are_those_of_gres_conf() -> None:
    """What slurmd looks for is what a host makes."""
    assert config_files.list_gpu_files(layout(slots=3)) == [
        "/dev/sandbox-gpu0",
        "/dev/sandbox-gpu1",
        "/dev/sandbox-gpu2",
    ]
    assert "File=/dev/sandbox-gpu[0-2]\n" in config_files.format_gres_conf(layout(slots=3))


def test_slurms_marks_stay_on_a_nodes_state() -> None:
    """A node that is idle but doesn't answer (`idle*`) isn't idle."""
    assert wait_until_ready.parse_node_states("n1 idle\nn2 idle*\n\nn3 down\n") == {
        "n1": "idle",
        "n2": "idle*",
        "n3": "down",
    }


def test_a_missing_program_is_named_with_its_package(tmp_path: Path) -> None:
    """All that is missing is named at once, each package once."""
    for name in ("munged", "slurmctld"):
        (tmp_path / name).touch(mode=0o755)
    with pytest.raises(SandboxError) as caught:
        require_slurm(search=str(tmp_path))
    assert caught.value.seen == "not installed here: slurmd, srun, sinfo"
    assert caught.value.fix == "sudo apt-get install -y slurmd slurm-client"
