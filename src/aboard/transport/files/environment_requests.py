"""The head's requests about a node's virtual environment, and its decoded replies."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from aboard.core.decoding import MaxLength, decode
from aboard.core.environment.node_parity import InstalledPackage, InterpreterDescription
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy_dataclass import dataclass
from aboard.transport.files.file_sender import FileSender

# Reading every RECORD of an environment on a slow disk; creating an empty environment there.
SURVEY_SECONDS = 120.0
# For each batch of wheels; a file server may write only a few MB/s.
CHANGE_SECONDS = 900.0
_REPLY_SECONDS = 10.0

T = TypeVar("T")
_Text = Annotated[str, MaxLength(200)]


@dataclass(frozen=True, kw_only=True)
class EnvironmentSurvey:
    """What is at the environment's path on a node, `prefix`; `stamp` identifies it on its disk."""

    prefix: Annotated[Untrusted, MaxLength(4096)]
    kind: Literal["none", "venv", "other"]
    ours: bool
    complete: bool
    runs: bool
    version: _Text
    system_packages: bool
    stamp: _Text
    packages: Annotated[Mapping[_Text, InstalledPackage], MaxLength(20_000)]
    interpreters: Annotated[tuple[InterpreterDescription, ...], MaxLength(100)]


@dataclass(frozen=True, kw_only=True)
class _ChangeReply:
    broke: Annotated[Untrusted, MaxLength(400)] = NO_TEXT


class EnvironmentRequests:
    """Requests about one path; the sender's heartbeats keep the link open while a request takes long."""

    def __init__(self, sender: FileSender, prefix: str) -> None:
        self._sender = sender
        self._prefix = prefix

    async def survey(self, head: InterpreterDescription, *, interpreters: bool) -> EnvironmentSurvey:
        """What the node has; with `interpreters`, also those that could be the environment's base."""
        return await self._ask(
            EnvironmentSurvey,
            "survey",
            SURVEY_SECONDS,
            site=head.site.raw(),
            minor=head.minor if interpreters else "",
            executable=head.executable.raw(),
        )

    async def create(self, base: InterpreterDescription, *, system_packages: bool, clear: bool) -> Untrusted:
        """Creates the environment; returns what `python -m venv` printed if it failed."""
        fields = {"executable": base.executable.raw(), "system_packages": system_packages, "clear": clear}
        return (await self._ask(_ChangeReply, "create", SURVEY_SECONDS, **fields)).broke

    async def change(self, site: str, *, remove: Sequence[str] = (), install: Sequence[str] = ()) -> None:
        await self._ask(_ChangeReply, "change", CHANGE_SECONDS, site=site, remove=list(remove), install=list(install))

    async def finish(self) -> None:
        await self._ask(_ChangeReply, "finish", SURVEY_SECONDS)

    async def _ask(self, kind: type[T], do: str, within: float, **fields: Any) -> T:
        reply = await self._sender.ask_process(
            "venv", within + _REPLY_SECONDS, self._prefix, do=do, timeout=within, **fields
        )
        return self._sender.parse_reply(reply, lambda reply: decode(kind, reply, strict=True))
