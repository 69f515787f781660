"""Recognizes a file by its first bytes: a log, a report that is read whole, or what Aboard doesn't judge."""

import re

from aboard.lazy_dataclass import dataclass

HEAD_BYTES = 8192
_LOOKED_AT = 20
_SHARE = 0.8


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """What a file is, in words. `whole`: parsed as one; `lines`: its lines are scanned as those of a log."""

    name: str
    whole: bool = False
    lines: bool = True


LOG = FileFormat(name="log")
RAS = FileFormat(name="NCCL RAS report", whole=True)
FLIGHT = FileFormat(name="torch flight-recorder dump", whole=True, lines=False)
# What it is shows once it is parsed; if it is none, its lines are those of a log.
JSON = FileFormat(name="JSON document", whole=True, lines=False)
STACKS = FileFormat(name="py-spy stack dump", whole=True, lines=False)
GPU_TABLE = FileFormat(name="nvidia-smi table", whole=True, lines=False)
GPU_QUERY = FileFormat(name="nvidia-smi -q report", whole=True, lines=False)
JOBS_TABLE = FileFormat(name="sacct table", whole=True, lines=False)
SLURM_JOB = FileFormat(name="scontrol job report", whole=True, lines=False)
SLURM_NODES = FileFormat(name="scontrol node report", whole=True, lines=False)
# Reports of a state by lines: without trouble in them, all is well.
QUEUE = FileFormat(name="squeue table")
KERNEL = FileFormat(name="kernel log")
JOURNAL = FileFormat(name="journal")
FABRIC_MANAGER = FileFormat(name="Fabric Manager log")
STATES = (RAS, QUEUE, KERNEL, JOURNAL, FABRIC_MANAGER)

_BY_START = (
    (FLIGHT, rb"\x80\x02}"),
    (RAS, rb"\s*NCCL version [^\n]*\n(?:[^\n]*\n){0,6}?Job summary\n"),
    (STACKS, rb"\s*Process \d+: [^\n]*\nPython v\d"),
    (GPU_QUERY, rb"\s*=+NVSMI LOG=+"),
    (GPU_TABLE, rb"(?:[^\n]{0,80}\n)?\+-+\+\n\| NVIDIA-SMI \d"),
    (JOBS_TABLE, rb"\s*JobID(?:Raw)?[ |](?:[^\n]*[ |])?State\b"),
    (SLURM_JOB, rb"\s*JobId=\d+ (?:ArrayJobId|HetJobId|JobName)="),
    (SLURM_NODES, rb"\s*NodeName=\S+ (?:Arch|CoresPerSocket|State)="),
    (QUEUE, rb"\s*JOBID +PARTITION "),
    (JOURNAL, rb"-- (?:Logs begin|Journal begins|Boot [0-9a-f]{8})"),
    # A document of more than one line; lines of JSON are a log.
    (JSON, rb"\s*(?:\{\s*(?:\"|\}|\Z)|\[\s*(?:[{\[]|\Z))(?![^\n]*\}\s*\n\s*\{)"),
)
_BY_LINES = (
    (FABRIC_MANAGER, rb"\[[A-Z][a-z]{2} +\d{1,2} \d{4} [\d:]{8}\] \[[A-Z]+\] \[tid \d+\]|Message payload details|\s*$"),
    (KERNEL, rb"(?:<\d{1,2}>)?\[ *\d+\.\d{6}\] |\[[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ [\d:]{8} \d{4}\] |\s{4,}\S"),
    (KERNEL, rb"\d+,\d+,\d+,-[^;]*;|\S{3,40} +\S+ kernel: |[A-Z][a-z]{2} +\d+ [\d:]{8} \S+ kernel: |kern  :\w+ *: "),
    (JOURNAL, rb"(?:[A-Z][a-z]{2} +\d+ [\d:]{8}|\d{4}-\d\d-\d\dT[\d:.+-]+) [\w.-]+ [\w@.()/:-]+(?:\[\d+\])?: "),
)
_UNREAD = (
    ("an ELF file: a core dump, a program or a library", rb"\x7fELF"),
    ("a pickle; of these, Aboard only reads flight-recorder dumps, and never runs one", rb"\x80[\x01-\x05]"),
    ("compressed by gzip; name it .gz", rb"\x1f\x8b"),
    ("an archive or checkpoint (zip)", rb"PK\x03\x04"),
    ("compressed (zstd, xz or bzip2); unpack it first", rb"\x28\xb5\x2f\xfd|\xfd7zXZ|BZh\d"),
    ("a database (SQLite), such as a report of nsys", rb"SQLite format 3"),
    ("a profile of perf", rb"PERFILE2"),
    ("a table (Parquet or Arrow)", rb"PAR1|ARROW1"),
    ("a picture or a PDF", rb"\x89PNG|\xff\xd8\xff|%PDF"),
    ("a file of tensors (safetensors)", rb".{8}{\""),
    ("UTF-16 text; convert it: iconv -f UTF-16 -t UTF-8", rb"\xff\xfe|\xfe\xff"),
    (
        "a Python script",
        rb"\s*(?:#![^\n]*python|\"\"\"|(?:#[^\n]*\n\s*)*(?:import [\w.]+(?:,| as |\n)|from [\w.]+ import ))",
    ),
    ("a page of HTML", rb"(?i:\s*<(?:!doctype html|html))"),
)


def recognize_format(head: bytes) -> FileFormat:
    """The format of a file by its first bytes; a log if it is none of the others."""
    for known, start in _BY_START:
        if re.match(start, head):
            return known
    lines = [line for line in head.split(b"\n")[:_LOOKED_AT] if line.strip()]
    for known, line_start in _BY_LINES:
        if lines and sum(re.match(line_start, line) is not None for line in lines) >= _SHARE * len(lines):
            return known
    return LOG


def find_unread_format(head: bytes) -> str:
    """What a file is that Aboard doesn't judge; "" if it may be a log."""
    known = (words for words, start in _UNREAD if re.match(start, head, re.DOTALL))
    return next(known, "not text" if b"\0" in head else "")
