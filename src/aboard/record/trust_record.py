"""The record of what `aboard trust` changed on each machine, written before each change so that it can be undone."""

import base64
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Literal, Self

from aboard.agent.private_folders import make_private_folder
from aboard.core.cluster.node import Node
from aboard.core.decoding import DecodeError, HostName, Matching, MaxLength, UserName, decode, parse_json
from aboard.core.trust.file_changes import FileChange, RecordedText
from aboard.diagnoses import AboardError
from aboard.diagnoses.nodes import trust
from aboard.durable_files import write_atomically
from aboard.lazy_dataclass import dataclass
from aboard.record.run_directory import PRIVATE_FILE
from aboard.record.runs import find_state_directory


@dataclass(frozen=True, kw_only=True)
class CreatedKey:
    """A private key that we created; its comment is in no other key."""

    path: str
    comment: Annotated[str, Matching(r"aboard-[0-9a-f]{16}")]


@dataclass(frozen=True, kw_only=True)
class TrustedMachine:
    """What we changed on one machine; `name` is "" for the head. `directories` are those that we created."""

    name: HostName | Literal[""] = ""
    address: HostName | None = None
    user: UserName | None = None
    port: int | None = None
    directories: tuple[RecordedText, ...] = ()
    keys: tuple[CreatedKey, ...] = ()
    changes: Annotated[tuple[FileChange, ...], MaxLength(2**12)] = ()

    @property
    def node(self) -> Node:
        return Node(name=self.name, address=self.address, user=self.user, port=self.port)

    @property
    def is_clean(self) -> bool:
        return not (self.directories or self.keys or self.changes)


@dataclass(frozen=True)
class TrustRecords:
    """The directory with one file per machine."""

    base: Path

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        return cls(find_state_directory(environ) / "trust")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Only one `aboard trust` at a time."""
        try:
            make_private_folder(self.base)
            fd = os.open(self.base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise _build_record_error(self.base, error) from None
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise AboardError(trust.BUSY, "another aboard trust is running", path=self.base) from None
            yield
        finally:
            os.close(fd)
            with suppress(OSError):
                # Nothing is recorded any more.
                self.base.rmdir()

    def head(self) -> "MachineRecord":
        return self._read(self.base / "head.json", TrustedMachine())

    def of_node(self, node: Node) -> "MachineRecord":
        """The record of a node, by how it is reached: its name may differ from file to file."""
        where = json.dumps([node.target, node.user, node.port])
        path = self.base / f"node-{hashlib.sha256(where.encode()).hexdigest()[:16]}.json"
        return self._read(path, TrustedMachine(name=node.name, address=node.address, user=node.user, port=node.port))

    def nodes(self) -> "list[MachineRecord]":
        """The records of all nodes, by name."""
        found = [self._read(path, TrustedMachine()) for path in self.base.glob("node-*.json")]
        return sorted(found, key=lambda each: each.machine.name)

    def _read(self, path: Path, default: TrustedMachine) -> "MachineRecord":
        try:
            return MachineRecord(path, _decode_machine(path.read_bytes()))
        except FileNotFoundError:
            return MachineRecord(path, default)
        except OSError as error:
            raise _build_record_error(path, error) from None
        except (ValueError, DecodeError):
            raise AboardError(trust.RECORD, f"the record {path} is damaged", path=path) from None


class MachineRecord:
    """The record of one machine on disk."""

    def __init__(self, path: Path, machine: TrustedMachine) -> None:
        self.path = path
        self.machine = machine

    def add_change(self, change: FileChange) -> None:
        self._save(replace(self.machine, changes=(*self.machine.changes, change)))

    def drop_change(self, change: FileChange) -> None:
        """The change was not made."""
        self._save(replace(self.machine, changes=tuple(each for each in self.machine.changes if each != change)))

    def add_directory(self, path: str) -> None:
        self._save(replace(self.machine, directories=(*self.machine.directories, path)))

    def add_key(self, key: CreatedKey) -> None:
        self._save(replace(self.machine, keys=(*self.machine.keys, key)))

    def keep_changes(self, path: str, kept: tuple[FileChange, ...]) -> None:
        """Of this file's changes, only these are left to undo."""
        others = tuple(change for change in self.machine.changes if change.path != path)
        self._save(replace(self.machine, changes=(*others, *kept)))

    def forget_key(self, key: CreatedKey) -> None:
        self._save(replace(self.machine, keys=tuple(each for each in self.machine.keys if each != key)))

    def forget_directory(self, path: str) -> None:
        kept = tuple(each for each in self.machine.directories if each != path)
        self._save(replace(self.machine, directories=kept))

    def _save(self, machine: TrustedMachine) -> None:
        """Writes the record durably; one without any change is removed."""
        self.machine = machine
        try:
            if machine.is_clean:
                self.path.unlink(missing_ok=True)
            else:
                write_atomically(self.path, _encode_machine(machine), sync=True, mode=PRIVATE_FILE)
        except OSError as error:
            raise _build_record_error(self.path, error) from None


def _decode_machine(data: bytes) -> TrustedMachine:
    """Every field is required: what a damaged record lacks could not be undone."""
    document = parse_json(data)
    if not isinstance(document, dict) or not document.keys() >= {field.name for field in fields(TrustedMachine)}:
        raise DecodeError("expected all fields")
    return decode(TrustedMachine, document, strict=True)


def _encode_machine(machine: TrustedMachine) -> str:
    return json.dumps(asdict(machine), indent=1, default=lambda content: base64.b64encode(content).decode())


def _build_record_error(path: Path, error: OSError) -> AboardError:
    return AboardError(trust.RECORD, f"the record can't be written: {path}: {error.strerror}", path=path.parent)
