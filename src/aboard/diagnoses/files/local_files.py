"""Diagnoses of files on this machine that can't be read, or are not what they were."""

from aboard.diagnoses.diagnosis import Diagnosis, RunFailure
from aboard.diagnoses.failure_class import FailureClass
from aboard.diagnoses.fixes import Advice

UNREADABLE = Diagnosis(
    code="data-unreadable",
    title="a file can't be read",
    symptoms=("PermissionError: [Errno 13] Permission denied", "OSError: [Errno 5] Input/output error"),
    explanation="The operating system refused to read the file. Usually permissions are missing, or a disk is failing"
    " (`sudo dmesg | tail`).",
    fixes={"file": "ls -l {path}", "folder": "ls -ld {path}"},
)

CHANGED = Diagnosis(
    code="data-changed",
    title="a file changed while it was being read",
    symptoms=("changed while it was being prepared", "changed while it was being sent"),
    explanation="Training would use part of the old content and part of the new content.",
    fixes=Advice("wait until the file is complete, then run the same command again"),
)

LOCKED = Diagnosis(
    code="data-locked",
    title="another process holds the lock on this data",
    symptoms=("is still preparing the same data and holds",),
    explanation="Another command is preparing the same data and has not finished within a day.",
    fixes="ps -p {process}  # on {host}; wait for it, or stop it",
)

SHARD_DAMAGED = RunFailure(
    code="data-shard-damaged",
    restart=FailureClass.PROGRAM,
    title="a token shard file changed after it was written",
    symptoms=("but the manifest says",),
    explanation="The file's size or hash differs from what was written. A copy may have been interrupted, or a disk"
    " may be faulty.",
    fixes="rm -r {folder}  # it is rebuilt",
)
