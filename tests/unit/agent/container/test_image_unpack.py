"""One unpack of an image per node: all ranks wait for it, run from it, and nothing of it stays."""

import os
from pathlib import Path

import pytest
from deadlines import until, wait_until
from made_events import list_fields
from supervisor_runs import Run, held

from aboard.core.cluster.container import Container
from aboard.core.plan.plan import Start
from aboard.transport.node_session import NodeSession

# A reference is always unpacked; a file only where the runtime can't mount it.
REFERENCE = "docker://example/train"
RANKS = ("0", "1", "2", "3")
# A stand-in for the runtime: it notes its calls, and runs a command as itself, without a container.
RUNTIME = """#!/bin/sh
echo "$*" >> {folder}/calls
case "$*" in
buildcfg) echo LIBEXECDIR={folder}/libexec ;;
*build*) while [ -e {folder}/slow ]; do sleep 0.05; done; {build} ;;
*) for word; do [ "$word" = python3 ] && echo "ran $(realpath "$image")"; image=$word; done ;;
esac
"""
UNPACK = 'mkdir "$4" && echo layer > "$4/file"'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with the stand-in."""
    write_runtime(tmp_path, UNPACK)
    return tmp_path


def write_runtime(folder: Path, build: str) -> None:
    runtime = folder / "apptainer"
    runtime.write_text(RUNTIME.format(folder=folder, build=build))
    runtime.chmod(0o755)


async def start_ranks(hold: NodeSession, folder: Path, image: str, **env: str) -> None:
    setup = ("bash", "-c", f'PATH={folder}:$PATH; exec "$@"', "bash")
    container = Container(runtime="apptainer", image=image)
    for rank in RANKS:
        await hold.start(
            Start(child=rank, argv=("python3",), env=env, cwd=str(folder), rank=0, container=container, setup=setup)
        )


def count_builds(folder: Path) -> int:
    return sum("build --sandbox" in line for line in (folder / "calls").read_text().splitlines())


def run_ranks(run: Run, folder: Path, image: str, **env: str) -> list[str]:
    """What the ranks print: the image that each of them ran from."""

    async def wait_for_end(hold: NodeSession) -> None:
        await start_ranks(hold, folder, image, **env)
        await until(lambda: all(run.finished(rank) for rank in RANKS))

    held(run, wait_for_end)
    return [run.output(rank).decode().strip() for rank in RANKS]


def test_an_image_is_unpacked_once_for_all_ranks(folder: Path) -> None:
    """Four ranks cause one unpack, run from its result, and the result is removed with the run."""
    run = Run()
    printed = run_ranks(run, folder, REFERENCE)
    assert printed == [f"ran {run.place}/images/0"] * len(RANKS)
    assert count_builds(folder) == 1
    # A rank that comes after the unpack doesn't wait for it.
    assert run.kinds(RANKS[0]) == ["unpacking", "started", "exited"]
    assert all(run.kinds(rank)[-2:] == ["started", "exited"] for rank in RANKS)
    wait_until(run.gone, 10)


def test_an_image_that_can_be_mounted_is_not_unpacked(folder: Path) -> None:
    """With a setuid starter, the runtime mounts the file itself."""
    starter = folder / "libexec" / "apptainer" / "bin" / "starter-suid"
    starter.parent.mkdir(parents=True)
    starter.touch()
    starter.chmod(0o4755)
    image = folder / "train.sif"
    image.touch()
    assert run_ranks(Run(), folder, str(image)) == [f"ran {image}"] * len(RANKS)
    assert count_builds(folder) == 0


def test_a_disk_for_large_files_is_used_and_cleaned(folder: Path) -> None:
    """APPTAINER_TMPDIR holds the unpacked image during the run, and nothing after it."""
    disk = folder / "disk"
    disk.mkdir()
    run = Run()
    printed = run_ranks(run, folder, REFERENCE, APPTAINER_TMPDIR=str(disk))
    assert printed[0].startswith(f"ran {disk}/aboard-{os.getuid()}-{run.id}.")
    wait_until(run.gone, 10)
    assert list(disk.iterdir()) == []


def test_a_failed_unpack_fails_every_rank_with_its_error(folder: Path) -> None:
    """The runtime's last line is the reason."""
    write_runtime(folder, "echo 'FATAL: no space left on device' >&2; exit 255")
    run = Run()

    async def wait_for_failures(hold: NodeSession) -> None:
        await start_ranks(hold, folder, REFERENCE)
        await until(lambda: all("failed" in run.kinds(rank) for rank in RANKS))

    held(run, wait_for_failures)
    why = [list_fields(event)["why"].raw() for event in run.events if event.kind == "failed"]
    assert why == [f"can't unpack {REFERENCE}: FATAL: no space left on device"] * len(RANKS)


def test_a_run_that_ends_during_the_unpack_starts_nothing(folder: Path) -> None:
    """The unpack is terminated, no rank starts after it, and no process is left."""
    (folder / "slow").touch()
    run = Run()

    async def wait_for_unpack(hold: NodeSession) -> None:
        await start_ranks(hold, folder, REFERENCE)
        await until(lambda: (folder / "calls").exists() and count_builds(folder) == 1)

    held(run, wait_for_unpack)
    assert [run.kinds(rank) for rank in RANKS] == [["unpacking"]] * len(RANKS)
    wait_until(run.gone, 10)
