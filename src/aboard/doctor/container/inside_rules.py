"""Rules that compare what ranks see in the container with what the node has."""

from collections.abc import Iterator

from aboard.core.cluster.node_commands import format_python_command
from aboard.core.probes.facts import Facts
from aboard.core.text.byte_sizes import GIB, format_size
from aboard.core.text.input_text import format_count
from aboard.diagnoses import Finding, Severity, format_shell
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.container import diagnoses as containers, inside_diagnoses as container_inside
from aboard.doctor.container.container_facts import INSIDE, OUTSIDE_SOFTWARE, RUNTIME, FailedStart, collect_views
from aboard.doctor.container.container_messages import build_start_findings, match_messages
from aboard.doctor.container.runtime_rules import find_container
from aboard.doctor.shared.fix_values import format_yaml_value
from aboard.doctor.shared.majority import group_by_value
from aboard.doctor.software.node_software import SOFTWARE

_SMALL_SHM = GIB
_OWN_FAILURE = r"^(Traceback |aboard: line \d+ of setup failed)"
_MANY_FILES = 65536


def find_failed_starts(facts: Facts) -> Iterator[Finding]:
    """Containers that do not start, where neither the runtime nor the image is missing."""
    runtimes = facts.of(RUNTIME)
    explained = {
        name
        for name, each in runtimes.items()
        if not each.runtime or each.kind in {"missing", "unreadable", "unusable"}
    }
    inside = facts.of(INSIDE)
    failed = {name: each.lines for name, each in inside.items() if isinstance(each, FailedStart)}
    # A quick check starts the container only for the software inside.
    failed |= {
        name: answer.lines
        for name, answer in facts.unknown(SOFTWARE).items()
        if name not in inside and facts.cluster.node(name).container is not None and _has_not_started(answer.lines)
    }
    yield from build_start_findings(facts, {name: lines for name, lines in failed.items() if name not in explained})


def _has_not_started(lines: tuple[Untrusted, ...]) -> bool:
    """Whether the runtime failed, and not the script inside or a line of `setup` outside."""
    own = any(line.match(_OWN_FAILURE) for line in lines)
    return bool(lines) and (not own or match_messages(lines)[1] is not None)


def find_hidden_gpus(facts: Facts) -> Iterator[Finding]:
    """GPUs of the node that ranks in the container can't use."""
    for name, (outside, inside) in collect_views(facts).items():
        if len(inside.gpus) < len(outside.gpus):
            count = format_count(len(outside.gpus), "GPU")
            seen = f"the node has {count}, and the container sees {len(inside.gpus) or 'none'}"
        elif outside.driver and not inside.driver:
            seen = "the container has the GPUs' devices, but not the driver's library libcuda.so.1"
        elif outside.rocm and not inside.rocm:
            seen = "the node has AMD GPUs, and the container has no /dev/kfd"
        else:
            continue
        yield containers.GPU.finding(
            nodes=(name,),
            severity=Severity.WARN if inside.gpus and inside.driver else Severity.BLOCK,
            seen=seen,
            why="The runtime must pass the GPUs' devices and the driver's libraries into the container.",
            fix=containers.GPU.fix("setting"),
        )


def find_hidden_infiniband(facts: Facts) -> Iterator[Finding]:
    """Adapters of the node that NCCL in the container can't use."""
    hidden = {
        name: len(outside.infiniband)
        for name, (outside, inside) in collect_views(facts).items()
        if outside.infiniband and not inside.infiniband
    }
    for count, names in group_by_value(hidden).items():
        runs_files = find_container(facts, names[0]).is_apptainer
        fix = container_inside.INFINIBAND
        yield fix.finding(
            nodes=names,
            seen=f"the node has {format_count(count, 'InfiniBand or RoCE adapter')}, and the container has no"
            " /dev/infiniband",
            fix=fix.fix("bind") if runs_files else fix.fix("device", option="--device=/dev/infiniband"),
        )


def find_small_shm(facts: Facts) -> Iterator[Finding]:
    """Shared memory that is smaller inside than outside, and small."""
    small = {
        name: (inside.shm, outside.shm)
        for name, (outside, inside) in collect_views(facts).items()
        if inside.shm < min(outside.shm, _SMALL_SHM)
    }
    for (inside, outside), names in group_by_value(small).items():
        option = "--bind=/dev/shm" if find_container(facts, names[0]).is_apptainer else "--ipc=host"
        yield container_inside.SHM.finding(
            nodes=names,
            seen=f"shared memory (/dev/shm) is {format_size(inside)} in the container, {format_size(outside)} outside",
            fix=container_inside.SHM.fix(option=option),
        )


def find_lower_limits(facts: Facts) -> Iterator[Finding]:
    """Limits that the container lowers: open files, and locked memory where the node has InfiniBand."""
    lower: dict[str, tuple[str, str]] = {}
    for name, (outside, inside) in collect_views(facts).items():
        if _is_lower(inside.files, outside.files) and (inside.files or 0) < _MANY_FILES:
            lower[name] = (
                f"a rank in the container can open {inside.files} files, and {_format_limit(outside.files)} outside",
                f"--ulimit=nofile={outside.files or 1048576}",
            )
        elif outside.infiniband and _is_lower(inside.locked, outside.locked):
            most = "all" if outside.locked is None else format_size(outside.locked)
            lower[name] = (
                f"a rank in the container can lock {format_size(inside.locked or 0)} of memory, and {most} outside",
                f"--ulimit=memlock={-1 if outside.locked is None else outside.locked}",
            )
    for (seen, option), names in group_by_value(lower).items():
        yield container_inside.LIMITS.finding(nodes=names, seen=seen, fix=container_inside.LIMITS.fix(option=option))


def find_single_user(facts: Facts) -> Iterator[Finding]:
    """Rootless Podman without subordinate ids: it runs images of one user, and can't pull or load others."""
    single = [
        name
        for name, (_outside, inside) in collect_views(facts).items()
        if inside.users == 1 and find_container(facts, name).runtime == "podman"
    ]
    if single:
        yield containers.SUBORDINATE_IDS.finding(
            nodes=tuple(single),
            severity=Severity.WARN,
            seen="the container has a single user id, so files of the image's other users can't be read or written",
            fix=containers.SUBORDINATE_IDS.fix(node=single[0]),
        )


def find_missing_home(facts: Facts) -> Iterator[Finding]:
    """Home directories that caches can be written to outside, but not inside."""
    missing = {
        name: (inside.home, outside.home)
        for name, (outside, inside) in collect_views(facts).items()
        if outside.home_writable and not inside.home_writable
    }
    for (inside, outside), names in group_by_value(missing).items():
        yield container_inside.HOME.finding(
            nodes=names,
            seen=f"the home directory in the container, {inside.visible(200)}, is missing or read-only",
            fix=container_inside.HOME.fix(home=format_yaml_value(outside.visible(500))),
        )


def find_missing_workdir(facts: Facts) -> Iterator[Finding]:
    """Working directories that exist outside, but not inside, or that are other directories inside."""
    for name, (outside, inside) in collect_views(facts).items():
        node, container = facts.cluster.node(name), find_container(facts, name)
        path = container.workdir or node.workdir
        if not outside.workdir or path is None or node.workdir is None:
            continue
        if not inside.workdir:
            seen = f"{path} does not exist in the container"
        elif container.workdir is None and inside.workdir != outside.workdir:
            seen = f"{path} in the container is not the node's {path}, but a directory of the image"
        else:
            continue
        yield container_inside.WORKDIR.finding(
            nodes=(name,),
            seen=seen,
            fix=container_inside.WORKDIR.fix("bind", path=format_yaml_value(path))
            if container.workdir is None
            else container_inside.WORKDIR.fix("map", source=node.workdir, path=path),
        )


def find_other_versions(facts: Facts) -> Iterator[Finding]:
    """Versions of torch and NCCL in the image that differ from those outside."""
    differing: dict[str, str] = {}
    outside = facts.of(OUTSIDE_SOFTWARE)
    for name, inside in facts.of(SOFTWARE).items():
        if name not in outside:
            continue
        changed = [
            f"{package} {inside.packages.get(package, 'missing')} (outside {outside[name].packages[package]})"
            for package in ("torch", "nccl", "cuda", "rocm")
            if package in outside[name].packages and inside.packages.get(package) != outside[name].packages[package]
        ]
        if changed:
            differing[name] = ", ".join(changed)
    for seen, names in group_by_value(differing).items():
        words = format_shell("-c 'import torch; print(torch.__version__, torch.__file__)'")
        yield container_inside.VERSIONS.finding(
            nodes=names,
            seen=f"in the container: {seen}",
            fix=container_inside.VERSIONS.fix(line=format_python_command(facts.cluster.node(names[0]), words)),
        )


def _is_lower(inside: int | None, outside: int | None) -> bool:
    return inside is not None and (outside is None or inside < outside)


def _format_limit(limit: int | None) -> str:
    return "any number" if limit is None else str(limit)
