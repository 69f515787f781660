"""The decoders of bytes from outside: what runs on an input, which errors it may raise, and inputs to start from."""

import gzip
import io
import json
import shlex
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from aboard.agent import frames
from aboard.commands.train.fetch_model import read_model_facts
from aboard.config.yaml_tree import convert_to_builtins, parse_tree
from aboard.core.cluster.hostfile import parse_hostfile
from aboard.core.cluster.node_sets import expand_logins, expand_node_set
from aboard.core.decoding import DecodeError, decode
from aboard.core.evidence.external_process import decode_external_processes
from aboard.core.evidence.nccl_ras import parse_ras_status
from aboard.core.evidence.node_snapshot import decode_node_snapshot
from aboard.core.evidence.python_stacks import parse_main_thread
from aboard.core.launchers.parse_command import parse_launcher_command
from aboard.core.plan.deepspeed_env_file import parse_env_file
from aboard.core.run.run_progress import RunProgress
from aboard.core.slurm.allocation import expand_counts, manages_gpus, parse_allocation
from aboard.core.slurm.job_ending import parse_kill_wait, parse_preemption
from aboard.core.slurm.job_state import parse_job_status
from aboard.core.slurm.slurm_facts import parse_job_times, parse_node_states, parse_srun_ports, parse_unmunge
from aboard.core.text.data_reference import DataReference
from aboard.core.trust.expected_fingerprints import parse_fingerprints
from aboard.core.trust.public_keys import find_known_keys, list_authorized_keys
from aboard.diagnoses import AboardError, InputError
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.collective.nccl_init_log import parse_init_log
from aboard.doctor.gpu.gpu_errors import parse_gpu_error
from aboard.doctor.logs.judge_log import judge_log
from aboard.doctor.logs.log_scanner import LogScanner
from aboard.engine.records.bundle_replay import replay_bundle
from aboard.record.event_log import read_events
from aboard.record.json_documents import decode_findings, decode_judgement
from aboard.record.rank_logs.log_reader import LogReader
from aboard.record.snapshot_document import decode_snapshot
from aboard.trainer.checkpoint.commit_marker import MarkerError, parse_marker, parse_serial
from aboard.trainer.data.intake.read_chunk import detect_format, read_rows
from aboard.trainer.data.intake.source_chunks import SourceSpec, list_source_chunks
from aboard.trainer.data.store.shard_manifest import read_manifest
from aboard.trainer.settings.adapter_files import read_adapter_config
from aboard.trainer.trackers.tracked_run import Cursor, TrackedRun
from aboard.transport.slurm.srun_log import classify_srun_failure, select_node_lines
from aboard.transport.ssh_log import classify_failure, explain_timeout, parse_phase
from aboard.transport.supervisor_messages import (
    parse_children,
    parse_event,
    parse_measurements,
    parse_output,
    parse_stacks,
)
from aboard.transport.transport import StreamEnding

TESTS = Path(__file__).parents[1] / "tests"
CHILDREN = frozenset({"0", "1"})


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """One decoder; `errors` are those that it declares."""

    run: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    errors: tuple[type[Exception], ...] = ()


def _encode(*values: object) -> Callable[[], list[bytes]]:
    return lambda: [json.dumps(value).encode() for value in values]


def _texts(*values: str) -> Callable[[], list[bytes]]:
    return lambda: [value.encode() for value in values]


def _files(folder: str, pattern: str = "*", most: int = 40) -> Callable[[], list[bytes]]:
    def read() -> list[bytes]:
        paths = sorted(path for path in (TESTS / folder).glob(pattern) if path.is_file())
        return [path.read_bytes()[:20_000] for path in paths[:: max(1, len(paths) // most)]]

    return read


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _message(data: bytes) -> Any:
    return frames.unpack(data)


def _in_file(name: str, run: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Decodes a file; `run` gets its path."""

    def decode_file(data: bytes) -> object:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            path = Path(folder, name)
            path.write_bytes(data)
            return run(path)

    return decode_file


def _split_frames(data: bytes) -> object:
    splitter = frames.FrameSplitter()
    half = len(data) // 2
    bodies = [body for part in (data[:half], data[half:]) for body in splitter.feed(part)]
    return [frames.unpack_any(body) for body in bodies]


def _parse_supervisor(data: bytes) -> None:
    """A message of a node's supervisor, as each kind that the head reads."""
    message = _message(data)
    parsers: tuple[Callable[[], object], ...] = (
        lambda: parse_event(message, "n", 0.0, CHILDREN),
        lambda: parse_output(message, "n", 0.0, {}, CHILDREN),
        lambda: parse_measurements(message, 0.0, CHILDREN),
        lambda: parse_stacks(message, CHILDREN),
        lambda: parse_children(message),
    )
    for parse in parsers:
        try:
            parse()
        except frames.FrameError:
            continue


def _scan_log(data: bytes) -> None:
    scanner = LogScanner()
    scanner.begin("log")
    for line in data.splitlines():
        scanner.take(line)
    judge_log(scanner.reading())


def _read_ssh(data: bytes) -> None:
    text = _text(data)
    for line in text.splitlines():
        parse_phase(line)
    classify_failure(StreamEnding(exit_code=255, stderr=text))
    explain_timeout(StreamEnding(exit_code=None, stderr=text))


def _read_srun(data: bytes) -> None:
    classify_srun_failure(_text(data), "n1", 1)
    select_node_lines(_text(data), "n1")


def _read_slurm(data: bytes) -> None:
    text = _text(data)
    parse_job_status(text)
    parse_node_states(text)
    parse_job_times(text, datetime.now(UTC))
    parse_unmunge(text)
    parse_srun_ports(text)
    parse_kill_wait(text)
    parse_preemption(text)
    manages_gpus(text)
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": text[:200]}
    parse_allocation(env, text)
    expand_counts(text[:1000])


def _read_keys(data: bytes) -> None:
    list(list_authorized_keys(data))
    find_known_keys(data, ["n1", "[n1]:22"])
    parse_fingerprints(_text(data), where="file")


class _NoFiles:
    """The head's files, of which there are only a hostfile and a script, with the fuzzed content."""

    def __init__(self, text: str) -> None:
        self._text = text

    def exists(self, path: str) -> bool:
        return path.endswith(("hostfile", ".sh", ".yaml", ".deepspeed_env"))

    def read(self, path: str) -> str:
        return self._text if self.exists(path) else ""

    def settings(self, path: str) -> Mapping[str, object]:
        return self.parse_settings(self._text, path)

    def parse_settings(self, text: str, path: str) -> Mapping[str, object]:
        found: Mapping[str, object] = convert_to_builtins(parse_tree(text, file=path))
        return found


def _parse_command(data: bytes) -> None:
    """The first line is a command, the rest the content of the files that it names."""
    first, _, rest = _text(data).partition("\n")
    try:
        words = shlex.split(first)
    except ValueError:
        words = first.split()
    parse_launcher_command(words, _NoFiles(rest), environ={"HOME": "/root", "SLURM_JOB_ID": "7"}, cwd="/work")


def _parse_sbatch(data: bytes) -> None:
    parse_launcher_command(["sbatch", "job.sh"], _NoFiles(_text(data)), environ={"HOME": "/root"}, cwd="/work")


def _pack_bundle(parts: Mapping[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, content in parts.items():
            entry = tarfile.TarInfo(f"aboard-bundle/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return data.getvalue()


_MANIFEST = b'{"format": 1, "aboard": "0", "run": "r"}'


def _replay_tar(path: Path) -> None:
    path.write_bytes(gzip.compress(path.read_bytes(), 1))
    replay_bundle(path)


def _replay_record(data: bytes) -> None:
    """A bundle with the parts that the JSON has: lists become lines."""
    content = _json(data)
    parts = {"manifest.json": _MANIFEST}
    for name, value in content.items() if isinstance(content, dict) else ():
        plain = name.isalnum() and len(name) < 40
        if plain and isinstance(value, list) and name != "findings":
            parts[f"{name}.jsonl"] = b"\n".join(json.dumps(each).encode() for each in value)
        elif plain:
            parts[f"{name}.json"] = json.dumps(value).encode()
    _in_file("b.tar.gz", _replay_tar)(_pack_bundle(parts))


def _parse_marker(data: bytes) -> None:
    """The body of a marker, behind a hash that fits."""
    first = f'{{"sha256":"{sha256(data).hexdigest()}",\n'.encode()
    parse_marker(first + data)
    parse_serial(first + data)


def _read_rank_logs(path: Path) -> None:
    """The first bytes are an index, the others the log itself."""
    data = path.read_bytes()
    path.unlink()
    half = len(data) // 2
    (path.parent / "00000.0.idx").write_bytes(data[:half])
    (path.parent / "00000.0.log").write_bytes(data[half:])
    (path.parent / "rank-0.log").write_bytes(data[half:])
    with closing(LogReader(path.parent)) as reader:
        listing = reader.list_segments()
        for rank in listing.ranks:
            list(reader.backward(listing, rank))


def _read_rows(path: Path) -> None:
    chunks = list_source_chunks(SourceSpec(path=str(path)))
    form = detect_format(chunks)
    for chunk in chunks:
        for _row in read_rows(chunk, form):
            pass


def _read_adapter(path: Path) -> None:
    (path.parent / "adapter_model.safetensors").touch()
    read_adapter_config(path.parent)


def _read_weights(path: Path) -> None:
    from aboard.trainer.weights.weight_files import open_safetensors, read_whole  # noqa: PLC0415 - brings torch

    for tensor in open_safetensors(path).values():
        read_whole(tensor)


def _safetensors_seeds() -> list[bytes]:
    heads = [
        {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}},
        {"a": {"dtype": "U8", "shape": [], "data_offsets": [0, 1]}, "__metadata__": {"format": "pt"}},
    ]
    texts = [json.dumps(head).encode() for head in heads]
    return [len(text).to_bytes(8, "little") + text + bytes(16) for text in texts]


def _frame_seeds() -> list[bytes]:
    plain = frames.pack({"event": 1, "kind": "started", "child": "0", "wall": 1.0})
    return [plain, plain * 3, frames.pack_tailed({"file": 3}, b"abc" * 10)]


def _read_tracker_state(path: Path) -> None:
    for name in ("tracked-run.json", "tracker-wandb.json", "run.json"):
        (path.parent / name).write_bytes(path.read_bytes())
    for file in list(path.parent.iterdir()):
        file.with_name(f".{file.name}").write_bytes(path.read_bytes())
    TrackedRun.load(path.parent)
    Cursor.load(path.parent, "wandb", "r")


_EVENTS: list[Any] = [
    {"at": 1.0, "node": "", "seq": 0, "kind": "generation", "data": {"number": 1}},
    {"at": 2.0, "node": "n1", "seq": 1, "kind": "started", "child": "0", "rank": 0},
    {"at": 3.0, "node": "n1", "seq": 2, "kind": "raised", "child": "0", "data": {"type": "E", "message": "m"}},
    {"at": 3.1, "node": "n1", "seq": 3, "kind": "exited", "child": "0", "data": {"code": 1}},
    {"at": 4.0, "node": "", "seq": 4, "kind": "deciding", "data": {"death": True, "was_stopped": False}},
    {"at": 5.0, "node": "n1", "seq": 5, "kind": "ended", "data": {"stubborn": [3]}},
    {"at": 6.0, "node": "", "seq": 6, "kind": "finished", "data": {"why": "x", "code": 1}},
]
_FINDING = {
    "code": "run-raised",
    "severity": "block",
    "nodes": ["n1"],
    "ranks": [0],
    "seen": "s",
    "why": "w",
    "fix": "",
}
_PLAN = {
    "nodes": [
        {
            "name": "n1",
            "address": "10.0.0.1",
            "user": "me",
            "port": 22,
            "transport": "ssh",
            "container": {"runtime": "docker", "image": "x"},
            "starts": [{"child": "0", "argv": ["python3"], "rank": 0}],
        }
    ]
}
_LOG_LINE = {"at": 1.0, "rank": 0, "node": "n1", "stream": "stderr", "text": "docker: not found"}
_MARKER = (
    b'"format":"aboard-checkpoint",\n"version":1,\n"serial":3,\n"step":3,\n"training":{"model":"m"},\n"progress":{"index":1},'
    b'\n"tensors":{\n"model/a":["F32",[2,2]]\n},\n"files":[\n{"name":"a","bytes":3}\n]}\n'
)
_SNAPSHOT = {
    "children": {"0": {"pid": 7, "state": "S", "stack": "x", "flight": {"groups": []}, "sockets": [["a", "b", "c"]]}},
    "node": {"load": 1.0, "mounts": [["/", "ext4", "x"]]},
    "wall": 1.0,
}


_ARRIVALS = {"groups": [["0/a1/0", "default_pg", [3, 5], [1000, 2000], 5]]}


def iterate_decoders() -> Iterator[tuple[str, Decoder]]:  # noqa: PLR0915 - a table
    """Each decoder with its name, which is the directory of its cases."""
    named = (AboardError, InputError)
    yield "frames", Decoder(run=_split_frames, seeds=_frame_seeds, errors=(frames.FrameError,))
    supervisor = _encode(
        {"event": 3, "wall": 1.0, "kind": "exited", "child": "0", "code": 1, "why": "x"},
        {"out": "0", "stream": "stderr", "offset": 3, "data": "abc", "wall": 1.0, "end": True},
        {"samples": {"wall": 1.0, "node": {"load": 1.0}, "children": {"0": {"step": 3, "metrics": {"loss": 1.0}}}}},
        {"samples": {"wall": 1.0, "gpus": [[97, 1.5, 2, None, 60]], "children": {"0": {"arrivals": _ARRIVALS}}}},
        {"stacks": {"0": 'File "x.py", line 3 in f'}, "children": {"0": {}}},
    )
    yield "supervisor-messages", Decoder(run=_parse_supervisor, seeds=supervisor, errors=(frames.FrameError,))
    yield (
        "node-snapshots",
        Decoder(
            run=lambda data: decode_node_snapshot(_json(data), {"0": 0}, 0.0),
            seeds=_encode(_SNAPSHOT),
            errors=(DecodeError,),
        ),
    )
    yield (
        "external-processes",
        Decoder(
            run=lambda data: decode_external_processes(_json(data), 0.0),
            seeds=_encode([{"pid": 3, "argv": ["python"], "env": {"RANK": "0"}, "started": 1.0, "ppid": 1}]),
            errors=(DecodeError,),
        ),
    )
    snapshot = {"number": 1, "at": 2.0, "version": "1", "plan": _PLAN, "answers": {"n1": _SNAPSHOT}, "findings": []}
    yield "snapshot-documents", Decoder(run=lambda data: decode_snapshot(_json(data)), seeds=_encode(snapshot))
    yield (
        "findings",
        Decoder(
            run=lambda data: (decode_findings(_json(data), own=True), decode_judgement({"findings": _json(data)})),
            seeds=_encode([_FINDING], [{**_FINDING, "consequences": [_FINDING]}]),
            errors=(DecodeError,),
        ),
    )
    progress = {"run": "r", "nodes": [], "ranks": [], "phase": "running", "step": 3, "at": 1.0}
    yield (
        "run-progress",
        Decoder(run=lambda data: decode(RunProgress, _json(data)), seeds=_encode(progress), errors=(DecodeError,)),
    )
    lines = b"\n".join(json.dumps(each).encode() for each in _EVENTS)
    yield (
        "event-log",
        Decoder(run=_in_file("events.jsonl", lambda path: list(read_events(path))), seeds=lambda: [lines]),
    )
    yield "rank-logs", Decoder(run=_in_file("data", _read_rank_logs), seeds=lambda: [bytes(range(256)) * 4])
    record = {"plan": _PLAN, "events": _EVENTS, "logs": [_LOG_LINE], "findings": [_FINDING]}
    yield "records", Decoder(run=_replay_record, seeds=_encode(record), errors=named)
    tar = _pack_bundle({"manifest.json": _MANIFEST, "plan.json": json.dumps(_PLAN).encode(), "events.jsonl": lines})
    yield "bundles", Decoder(run=_in_file("b.tar.gz", _replay_tar), seeds=lambda: [tar], errors=named)
    yield "logs", Decoder(run=_scan_log, seeds=_files("cases/logs", "**/*"))
    yield (
        "nccl-init-logs",
        Decoder(
            run=lambda data: parse_init_log([Untrusted(line) for line in _text(data).splitlines()]),
            seeds=_files("unit/nccl_logs", "*.log"),
        ),
    )
    yield "nccl-ras", Decoder(run=lambda data: parse_ras_status(_text(data)), seeds=_files("unit/ras", "*.txt"))
    yield (
        "stacks-and-kernel-lines",
        Decoder(
            run=lambda data: (parse_main_thread(Untrusted(_text(data))), parse_gpu_error(_text(data))),
            seeds=_texts(
                'Thread 7 (idle): "MainThread"\n    f (x.py:3)\n    main (y.py:9)',
                "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.",
            ),
        ),
    )
    ssh = "debug1: Connecting to n1 [10.0.0.1] port 22.\nme@n1: Permission denied (publickey).\nkex_exchange: reset"
    yield "ssh-logs", Decoder(run=_read_ssh, seeds=_texts(ssh, "Host key verification failed.\nConnection closed"))
    srun = "srun: error: Node failure on n1\nslurmstepd-n1: error: execve(): python: No such file\nsrun: job 7 queued"
    yield "srun-logs", Decoder(run=_read_srun, seeds=_texts(srun))
    yield (
        "slurm-output",
        Decoder(
            run=_read_slurm,
            seeds=lambda: [
                b"JobId=7 JobName=x\n   JobState=RUNNING Reason=None NodeList=n[1-2] StartTime=2026-11-15T08:00:00",
                b"7|RUNNING|n[01-04]|2026-11-15T08:00:00|1:00:00|None",
                b"2(x3),1",
                b"n1 idle none\nn2 down* Not responding",
                *_files("unit/golden", "*.conf")(),
            ],
            errors=named,
        ),
    )
    hosts = _texts("n1 slots=8\nme@n2:2222 slots=4 # x\n\nn[3-5]\n", "10.0.0.1\n[::1]:22\n")
    yield "hostfiles", Decoder(run=lambda data: parse_hostfile(_text(data)), seeds=hosts, errors=named)
    yield (
        "node-sets",
        Decoder(
            run=lambda data: (expand_node_set(_text(data)), expand_logins(_text(data))),
            seeds=_texts("n[1-8,10],me@gpu[01-03]x[1-2]", "n[001-100]"),
            errors=named,
        ),
    )
    yield (
        "yaml",
        Decoder(
            run=lambda data: convert_to_builtins(parse_tree(_text(data), file="aboard.yaml")),
            seeds=_files("unit/golden", "*.yaml"),
            errors=named,
        ),
    )
    env = _texts("NCCL_DEBUG=INFO\nexport A='b c'\n# x\nB=\"$A\"\n")
    yield "env-files", Decoder(run=lambda data: parse_env_file(_text(data)), seeds=env, errors=named)
    commands = _texts(
        "torchrun --nnodes 2 --nproc-per-node 8 --rdzv-endpoint n1:29500 train.py --lr 1\n",
        "deepspeed --hostfile hostfile --include n1:0,1 train.py\nn1 slots=2\nn2 slots=2\n",
        "accelerate launch --config_file a.yaml --num_processes 4 train.py\nnum_machines: 2\nmixed_precision: bf16\n",
        "srun -N2 --ntasks-per-node=8 python -m torch.distributed.run train.py\n",
        "docker run --rm --gpus all -v /a:/b -e X=1 image torchrun train.py\n",
        "env A=1 bash job.sh\n#!/bin/bash\nexport N=$(hostname)\nfor i in 1 2; do echo $i; done\ntorchrun train.py\n",
    )
    yield "launcher-commands", Decoder(run=_parse_command, seeds=commands, errors=named)
    yield "batch-scripts", Decoder(run=_parse_sbatch, seeds=_files("unit/golden/sbatch", "**/*"), errors=named)
    keys = _texts(
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHRlc3R0ZXN0dGVzdHRlc3R0ZXN0dGVzdHRlc3R0ZXN0 me@x\nn1 ssh-rsa AAAAB3Nz x",
        "n1 SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU (ED25519)\n",
    )
    yield "ssh-keys", Decoder(run=_read_keys, seeds=keys, errors=named)
    yield (
        "data-references",
        Decoder(
            run=lambda data: DataReference.parse(_text(data)),
            seeds=_texts("OWNER/NAME?split=test&subset=en&revision=v1"),
        ),
    )
    manifest = {"format": "aboard-shards", "version": 1, "shards": [], "documents": 0, "tokens": 0, "supervised": 0}
    yield (
        "shard-manifests",
        Decoder(
            run=_in_file("manifest.json", lambda path: read_manifest(path.parent)),
            seeds=_encode(manifest),
            errors=named,
        ),
    )
    yield "checkpoint-markers", Decoder(run=_parse_marker, seeds=lambda: [_MARKER], errors=(MarkerError,))
    adapter = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}
    yield (
        "adapter-settings",
        Decoder(run=_in_file("adapter_config.json", _read_adapter), seeds=_encode(adapter), errors=named),
    )
    model = {"model_type": "llama", "vocab_size": 3, "max_position_embeddings": 4, "text_config": {"vocab_size": 4}}
    yield (
        "model-settings",
        Decoder(
            run=_in_file("config.json", lambda path: read_model_facts(path.parent)), seeds=_encode(model), errors=named
        ),
    )
    yield "safetensors", Decoder(run=_in_file("m.safetensors", _read_weights), seeds=_safetensors_seeds, errors=named)
    rows = b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n{"text": "x"}\n'
    yield "json-rows", Decoder(run=_in_file("rows.jsonl", _read_rows), seeds=lambda: [rows], errors=named)
    tracker = {"id": "r", "name": "n", "project": "p", "config": {}, "line": 3, "step": 3, "run": "r"}
    yield "tracker-state", Decoder(run=_in_file("state.json", _read_tracker_state), seeds=_encode(tracker))


DECODERS = dict(iterate_decoders())
