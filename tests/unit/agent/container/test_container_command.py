"""The command that runs a rank in a container: its whole text for each runtime, and what no runtime may get wrong."""

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aboard.agent.container.container_command import ContainerSpec, run_after_setup, wrap_command

GOLDEN = Path(__file__).parents[2] / "golden" / "containers"
RUNTIMES = ("apptainer", "singularity", "docker", "podman")
IMAGES = {"apptainer": "/images/train.sif", "singularity": "/images/train.sif"}
GPU_DEVICES = {"nvidia": "/dev/nvidiactl", "rocm": "/dev/kfd", "none": "/dev/null"}
RUN_DIRECTORY = "/tmp/aboard-1000/r1"
# What the login of the node sets, and what Aboard sets: the beacon's path and a secret are among it.
LOGIN = {
    "HOME": "/home/me",
    "PATH": "/opt/conda/bin:/usr/bin",
    "PYTHONPATH": "/opt/site",
    "CONDA_PREFIX": "/opt/conda",
    "LD_PRELOAD": "/opt/lib/jemalloc.so",
    "NCCL_TOPO_FILE": "/opt/topology/a.xml",
    "HF_HOME": "/scratch/hf",
    "WANDB_API_KEY": "wandb_very_secret",
    "USER": "me",
}
GIVEN = {
    "RANK": "0",
    "HF_TOKEN": "hf_very_secret",
    "PYTHONPATH": f"{RUN_DIRECTORY}/beacon:/code",
    "ABOARD_RUN_ID": "r1",
}
PRESENT = {
    *("/etc/nccl.conf", "/dev/infiniband", "/opt/topology/a.xml", "/scratch/hf"),
    *("/home/me", "/home/me/.netrc", "/home/me/.config/wandb", "/home/me/project"),
}


def wrap(
    runtime: str, present: str = "none", *, given: Mapping[str, str] = GIVEN, **fields: Any
) -> tuple[list[str], dict[str, str]]:
    """A rank's command on a node with these GPUs; `auto` finds them."""
    spec = ContainerSpec({"runtime": runtime, "image": IMAGES.get(runtime, "train:1"), **fields})
    return wrap_command(
        spec,
        ["python3", "train.py", "--name", "it's $5"],
        {**LOGIN, **given},
        given,
        run="r1",
        directory=RUN_DIRECTORY,
        cwd="/home/me/project",
        exists=lambda path: path in PRESENT or path == GPU_DEVICES[present],
        own=LOGIN,
    )


def format_command(words: list[str], env: Mapping[str, str]) -> Iterator[str]:
    """One option per line, then the variables that the runtime's process gets besides the login's."""
    line: list[str] = []
    for word in words:
        if line and word.startswith("-"):
            yield f"  {shlex.join(line)}"
            line = []
        line.append(word.replace(f"--user={os.getuid()}:{os.getgid()}", "--user=UID:GID"))
    yield f"  {shlex.join(line)}"
    yield from (f"  {name}={value}" for name, value in sorted(env.items()) if LOGIN.get(name) != value)
    yield f"  without {' '.join(sorted(LOGIN.keys() - env.keys()))}"


def format_commands(runtime: str) -> Iterator[str]:
    for gpus in GPU_DEVICES:
        for entry in ("exec", "run"):
            yield f"{entry}, GPUs: {gpus}"
            yield from format_command(*wrap(runtime, gpus, entry=entry))
            yield ""
    yield "with the user's own settings"
    own: dict[str, Any] = {"binds": ["/data", "/a:/scratch/hf:ro"], "options": ["--hostname=x"]}
    own |= {"writable_tmpfs": True, "workdir": "/workspace", "gpus": "none"}
    yield from format_command(*wrap(runtime, "nvidia", **own))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_command_of_each_runtime(runtime: str) -> None:
    """GPU options follow the node's devices, binds what exists there, and values never appear in the argv."""
    assert "\n".join(format_commands(runtime)) + "\n" == (GOLDEN / f"{runtime}.txt").read_text("utf-8")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_no_value_is_on_the_command_line(runtime: str) -> None:
    """Every user of the node can read a command line; only its owner can read an environment."""
    words, env = wrap(runtime)
    assert not [word for word in words if "secret" in word or RUN_DIRECTORY + "/beacon" in word]
    assert "hf_very_secret" in env.values()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_path_for_inside_does_not_change_the_runtime_outside(runtime: str) -> None:
    """The runtime is found by the node's own PATH, and Python inside by the one that the user sets."""
    words, env = wrap(runtime, given={"PATH": "/inside/bin"})
    assert env["PATH"] == LOGIN["PATH"]
    assert "/inside/bin" in [env.get(f"{runtime.upper()}ENV_PATH"), env.get("ABOARD_INSIDE_PATH")]
    assert "--env" not in words or words[words.index("--env") + 1] != "PATH"


@pytest.mark.parametrize(
    ("runtime", "options"),
    [
        ("apptainer", ["--bind", "/x:/home/me/project,/y:/etc/nccl.conf", "-B/z:/scratch/hf"]),
        ("docker", ["-v", "/x:/home/me/project", "--volume=/y:/etc/nccl.conf/", "--tmpfs", "/scratch/hf"]),
        ("podman", ["--mount=type=bind,src=/x,dst=/home/me/project", "-v=/y:/etc/nccl.conf", "-v/z:/scratch/hf"]),
    ],
)
def test_binds_in_options_are_not_repeated(runtime: str, options: list[str]) -> None:
    """Docker and Podman refuse a second bind of the same path."""
    words, _env = wrap(runtime, options=options)
    ours = {words[place + 1] for place, word in enumerate(words) if word in ("--bind", "--volume")} - set(options)
    targets = {bind.rpartition(":")[2] for bind in ours}
    assert "/home/me/.netrc" in targets
    assert not targets & {"/home/me/project", "/etc/nccl.conf", "/scratch/hf"}


def test_directory_with_a_comma_is_no_second_bind() -> None:
    """Apptainer splits binds at commas: such a directory is visible only in one that is bound."""
    spec = ContainerSpec({"runtime": "apptainer", "image": "x.sif"})
    words, _env = wrap_command(
        spec, ["python3"], {}, (), run="r1", directory="/d", cwd="/home/me/lr=1,2", exists=lambda _path: True, own={}
    )
    assert "/home/me/lr=1,2" not in [words[place + 1] for place, word in enumerate(words) if word == "--bind"]
    assert words[words.index("--pwd") + 1] == "/home/me/lr=1,2"


def test_pythonpath_of_the_image_comes_after_ours() -> None:
    """The shell inside adds the image's own directories, and leaves no variable of ours behind."""
    words, env = wrap("docker", entry="run")
    command = words[words.index("train:1") + 1 :]
    inside = {"PYTHONPATH": "/image", **{name: value for name, value in env.items() if name.startswith("ABOARD_")}}
    shown = [*command[: command.index("python3")], "/usr/bin/env"]
    printed = subprocess.run(shown, env=inside, capture_output=True, text=True, check=True).stdout.splitlines()
    assert f"PYTHONPATH={GIVEN['PYTHONPATH']}:/image" in printed
    assert not [line for line in printed if line.startswith("ABOARD_INSIDE")]


def test_setup_lines_do_not_bring_another_python() -> None:
    """A module that a setup line loads for the runtime may set PYTHONPATH, which Apptainer would pass inside."""
    setup = ["bash", "-c", 'export PYTHONPATH=/module MODULE=1; exec "$@"', "bash"]
    shown = run_after_setup(setup, ["/usr/bin/env"])
    printed = subprocess.run(shown, env={"PATH": os.defpath}, capture_output=True, text=True, check=True).stdout
    assert "PYTHONPATH" not in printed
    assert "MODULE=1" in printed
