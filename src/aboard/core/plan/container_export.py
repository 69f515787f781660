"""The words that start a launcher in a node's container, for people who run an exported plan by hand."""

from collections.abc import Iterable, Iterator

from aboard.core.cluster.container import Container

_GPU_OPTIONS = {"apptainer": "--nv or --rocm", "singularity": "--nv or --rocm", "docker": "--gpus=all"}
_PODMAN_GPUS = "--device=nvidia.com/gpu=all"


def build_container_words(container: Container, workdir: str | None, names: Iterable[str]) -> list[list[str]]:
    """Groups of words, one per line; `names` are exported variables, which Apptainer passes by itself."""
    if container.is_apptainer:
        start, bind, enter = [[container.runtime, container.entry]], "--bind", "--pwd"
    else:
        start, bind, enter = (
            [[container.runtime, "run", "--rm", "--network=host", "--ipc=host"]],
            "--volume",
            "--workdir",
        )
        start += [["--env", name] for name in names]
    for each in [*([workdir] if workdir else []), *container.binds]:
        source, _, rest = each.partition(":")
        start.append([bind, each if container.is_apptainer else f"{source}:{rest or source}"])
    inside = workdir if container.workdir is None else container.workdir
    start += [[enter, inside]] if inside else []
    start += [[word] for word in (*_list_gpu_options(container), *container.options)]
    if container.writable_tmpfs and container.is_apptainer:
        start.append(["--writable-tmpfs"])
    return [*start, [container.image]]


def describe_gpu_choice(container: Container) -> Iterator[str]:
    """What Aboard would find out on the node and the reader has to."""
    if container.gpus == "auto":
        option = _GPU_OPTIONS.get(container.runtime, _PODMAN_GPUS)
        yield f"# With GPUs, add {option} before the image. Bind NCCL's files and caches that the ranks need."


def _list_gpu_options(container: Container) -> list[str]:
    if container.gpus == "nvidia":
        return ["--nv"] if container.is_apptainer else [_GPU_OPTIONS.get(container.runtime, _PODMAN_GPUS)]
    if container.gpus == "rocm":
        return ["--rocm"] if container.is_apptainer else ["--device=/dev/kfd", "--device=/dev/dri"]
    return []
