"""The class of each failure that can end a generation: by its diagnosis, the variant of its fix, and its nodes."""

from collections.abc import Iterator, Mapping
from enum import StrEnum


class FailureClass(StrEnum):
    """What a failure belongs to, which decides what is done about it."""

    TRANSIENT = "transient"
    NODE = "node"
    PROGRAM = "program"
    OUTSIDE = "outside"
    UNKNOWN = "unknown"


# Codes, each with a variant of its fix behind a slash where that decides. What is not listed is unknown.
_LISTED: Mapping[FailureClass, str] = {
    FailureClass.TRANSIENT: (
        "run-raised/port run-raised/some-port run-exited/port run-exited/some-port run-not-started/port"
        " run-not-started/some-port network-port-taken network-reset run-killed/memory run-lease-expired"
        " hang-link-cut hang-big-packets init-store-dropped init-store-rejected init-store-no-route init-store-refused"
        " init-name checkpoint-peer-lost checkpoint-stuck"
    ),
    FailureClass.NODE: (
        "run-node-gone run-agent-killed hang-mount/local hang-link-down gpu-lost gpu-ecc gpu-fabric-manager gpu-nvlink"
        " gpu-driver-mismatch gpu-xid/gone gpu-xid/link gpu-xid/reset gpu-xid/earlier gpu-xid/listed gpu-xid/before"
        " gpu-xid/processor run-raised/xid run-exited/xid run-killed/xid run-not-started/xid run-out-of-memory/xid"
        " run-shm-full/xid run-disk-full/xid storage-dead-mount storage-read-only container-no-space container-storage"
        " container-daemon checkpoint-write"
    ),
    FailureClass.PROGRAM: (
        "run-raised run-raised/gpu-memory run-raised/script run-raised/interface run-raised/open-files"
        " run-exited/gpu-memory run-exited/script run-exited/interface run-exited/open-files run-nested-launcher"
        " gpu-xid/program hang-mismatch hang-order hang-uneven init-world init-elsewhere init-rank-twice init-loopback"
        " init-rank-late loss-no-number train-nonfinite train-loss-scale train-config train-given train-batch"
        " train-hybrid train-attention train-bf16 train-length train-vocabulary train-memory train-packing-unknown"
        " train-chunked-loss train-compiler checkpointing-unknown sharding-uneven checkpoint-differs"
        " checkpoint-none-sound checkpoint-elsewhere checkpoint-not-writable checkpoint-out-of-step"
        " checkpoint-unusable checkpoint-layout checkpoint-state checkpoint-parts-lost adapter-dropout adapter-targets"
        " adapter-tied adapter-base-type adapter-4bit adapter-files model-missing model-code model-not-built"
        " model-no-weights model-damaged model-quantized model-names model-shapes model-no-start data-manifest"
        " data-shard-damaged container-image-invalid container-architecture container-option"
    ),
    FailureClass.OUTSIDE: (
        "run-rank-stopped run-head-paused run-conductor-lost hang-traced hang-mount/remote hang-mount/check"
        " hang-outside checkpoint-folder-busy"
    ),
}
# A node's where some nodes of several have it, and the program's where all do.
_BY_EXTENT = (
    "run-raised/install run-raised/interpreter run-raised/image run-raised/file run-raised/copy run-raised/copy-to-all"
    " run-exited/install run-exited/interpreter run-exited/image run-exited/file run-exited/copy"
    " run-exited/copy-to-all run-not-started run-not-started/folder run-not-started/program run-not-started/install"
    " run-not-started/interpreter run-not-started/image run-not-started/file run-not-started/copy"
    " run-not-started/copy-to-all run-shm-full model-differs train-packages container-image-missing"
    " container-image-permission container-program-missing container-runtime-missing container-user-namespaces"
    " container-subordinate-ids container-bind container-gpu container-not-started"
)
# A node's on its own disk; on a disk that nodes share, it has to clear for all of them.
_BY_DISK = "run-disk-full run-raised/disk run-exited/disk run-not-started/disk checkpoint-disk-full checkpoint-failed"
_CLASSES = {name: kind for kind, names in _LISTED.items() for name in names.split()}
_EXTENT, _DISK = frozenset(_BY_EXTENT.split()), frozenset(_BY_DISK.split())


def classify_failure(
    code: str, variant: str = "", *, everywhere: bool = False, shared_disk: bool = False, own_memory: bool = False
) -> FailureClass:
    """The class of a failure.

    `everywhere`: all of several nodes have it. `shared_disk`: nodes share the disk that it is about. `own_memory`: the
    ranks themselves used most of the memory that ran out.
    """
    if code == "run-out-of-memory":
        return FailureClass.PROGRAM if own_memory or everywhere else FailureClass.NODE
    for name in (f"{code}/{variant}", code):
        if name in _EXTENT:
            return FailureClass.PROGRAM if everywhere else FailureClass.NODE
        if name in _DISK:
            return FailureClass.OUTSIDE if shared_disk or everywhere else FailureClass.NODE
        if name in _CLASSES:
            return _CLASSES[name]
    return FailureClass.UNKNOWN


def list_classes() -> Iterator[tuple[str, str]]:
    """Each listed failure with its class in words, for documentation and its test."""
    yield "run-out-of-memory", "program if the ranks used most of the memory, else node"
    yield from ((name, kind.value) for name, kind in _CLASSES.items())
    yield from ((name, "*node* if only some nodes are affected, otherwise *program*") for name in _BY_EXTENT.split())
    yield from ((name, "node on its own disk, outside on a shared one") for name in _BY_DISK.split())
