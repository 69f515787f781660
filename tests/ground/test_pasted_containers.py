"""Commands that start a launcher in a container, pasted on hosts with real runtimes and a real Slurm."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from launching import Launches, build_sandbox

pytestmark = [pytest.mark.ground, pytest.mark.nightly, pytest.mark.xdist_group("pasted-containers")]

NODES = ("--hostfile", "hosts")
REPORT = """
import json, os, sys
from pathlib import Path
names = ("RANK", "WORLD_SIZE", "HOME", "GIVEN", "NCCL_DEBUG", "ACCELERATE_MIXED_PRECISION", "container")
report = {name: os.environ.get(name) for name in names}
report.update(cwd=os.getcwd(), words=sys.argv[1:], inside=Path("/.singularity.d").exists())
Path(f"/workspace/report-{os.environ['RANK']}.json").write_text(json.dumps(report))
"""
HOSTS = "n1 slots=2\nn2 slots=2\n"
CONFIG = "distributed_type: MULTI_CPU\nmixed_precision: bf16\nnum_machines: 2\nnum_processes: 4\nuse_cpu: true\n"
SCRIPT = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
export NCCL_DEBUG=INFO GIVEN=outside
for ((i=0; i<$SLURM_NNODES; i++)); do
    srun --nodes=1 --ntasks=1 -w "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n "$((i+1))p")" \\
    singularity run --home $PWD:/home/trainer --bind $PWD:/workspace --env GIVEN=inside --pwd /workspace train.sif \\
    torchrun --node_rank $i --nnodes $SLURM_NNODES --nproc-per-node=2 src/report.py --lr 1 &
done
wait
"""


@pytest.fixture(scope="module")
def launches() -> Iterator[Launches]:
    """Two nodes of two slots, and a project whose directory is /workspace inside."""
    with build_sandbox("pasted-containers", nodes=2, slots=2, containers=True, slurm=True) as box:
        launches = Launches(box, folder="/shared/project")
        box.head.run(["rm", "/shared/project/aboard.yaml"]).check_returncode()
        box.head.run(["mkdir", "/shared/project/src"]).check_returncode()
        box.head.run(["ln", "-s", "/opt/images/train.sif", "/shared/project/train.sif"]).check_returncode()
        for name, text in (("src/report.py", REPORT), ("config.yaml", CONFIG), ("job.sh", SCRIPT), ("hosts", HOSTS)):
            launches.put(name, text)
        yield launches


def collect_reports(launches: Launches, *words: str) -> list[dict[str, Any]]:
    """What each of four ranks of the pasted command found."""
    launches.box.head.run(["sh", "-c", "rm -f /shared/project/report-*"]).check_returncode()
    ran = launches.launch(*words, timeout=300)
    assert ran.code == 0, ran.said
    assert launches.orphans(ran.run) == {}
    done = launches.box.head.run(["sh", "-c", "cat /shared/project/report-[0-3].json | sed 's/}{/}\\n{/g'"])
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [report["RANK"] for report in reports] == ["0", "1", "2", "3"]
    return reports


def test_a_config_inside_is_read_through_its_bind(launches: Launches) -> None:
    """Accelerate's settings come from a file that the command names by its path inside; the relative image is found."""
    command = "singularity exec --bind /shared/project:/workspace --env GIVEN=1 --pwd /workspace/src train.sif"
    inner = "accelerate launch --config_file ../config.yaml report.py --lr 1"
    for report in collect_reports(launches, *NODES, "--", *command.split(), *inner.split()):
        assert (report["cwd"], report["words"], report["GIVEN"]) == ("/workspace/src", ["--lr", "1"], "1")
        assert (report["inside"], report["ACCELERATE_MIXED_PRECISION"]) == (True, "bf16")


def test_a_shell_as_the_entry_point(launches: Launches) -> None:
    """Podman's flags that Aboard sets itself are dropped, and the shell's `cd` is where ranks start."""
    command = (
        "podman run -it --rm --ipc=host --ulimit memlock=-1 -v ./:/workspace -e GIVEN=2 --entrypoint bash train -c"
    )
    inner = "cd /workspace/src && torchrun --nnodes 2 --nproc-per-node 2 report.py"
    for report in collect_reports(launches, *NODES, "--", *command.split(), inner):
        assert (report["cwd"], report["GIVEN"], report["WORLD_SIZE"]) == ("/workspace/src", "2", "4")
        assert report["container"] == "podman"


def test_a_script_that_starts_a_container_on_each_node(launches: Launches) -> None:
    """The loop is one run, in the container with its own home; variables for inside win over exported ones."""
    for report in collect_reports(launches, "--", "sbatch", "job.sh"):
        assert (report["cwd"], report["HOME"], report["inside"]) == ("/workspace", "/home/trainer", True)
        assert (report["GIVEN"], report["NCCL_DEBUG"], report["WORLD_SIZE"]) == ("inside", "INFO", "4")
