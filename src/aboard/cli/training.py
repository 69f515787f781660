"""From what is written to a training under way; what is made ready on the way is told line by line."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from aboard.checks.train.boarding import Boarding, Needs, judged
from aboard.cli.errand import Errand, run
from aboard.cli.provide import Teller
from aboard.config.train import TrainWords
from aboard.core.cluster import Cluster
from aboard.core.lease import Lease
from aboard.core.plan import Plan
from aboard.core.request import settled
from aboard.core.training import Training
from aboard.diagnoses import AboardError, Finding, Shell, shell
from aboard.flows.train import TrainCargo, request
from aboard.flows.train_bring import bring
from aboard.flows.train_needs import MODULE, needs
from aboard.flows.trainer import Trainer
from aboard.lazy import dataclass
from aboard.ui.findings import FindingsView
from aboard.wires.fleet import Fleet

EXIT_BLOCKED = 2


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was typed beside the file."""

    env: Mapping[str, str]
    ranks: int | None
    check: str
    lease: Lease
    command: Shell
    dry: bool = False
    detach: bool = False


def trained(words: TrainWords, cluster: Cluster, asked: Asked) -> int:
    """Makes ready, looks, brings, starts; the exit code is the run's."""
    console = Console(highlight=False)
    if early := known_before(words, cluster, asked.ranks):
        console.print(FindingsView(early, in_full=False), crop=False)
        return EXIT_BLOCKED
    with Trainer(MODULE) as trainer:
        if not asked.detach:
            # It imports torch while data is looked at; the head itself does without.
            trainer.begin()
        return _trained(cluster, asked, trainer, Teller(console, words))


def _trained(cluster: Cluster, asked: Asked, trainer: Trainer, teller: Teller) -> int:
    cache = cache_folder(os.environ)
    provisions = teller.provide(cache)
    if provisions is None:
        return EXIT_BLOCKED

    async def needs_of(training: Training, ranks: Mapping[str, int], room: int | None) -> Needs | None:
        try:
            found = await needs(trainer, training, provisions.model, ranks, room)
        except AboardError as error:
            # Not known is no reason to stop: a head without torch trains on nodes that have it.
            teller.say("memory", f"not estimated: {error.seen}")
            return None
        teller.say("memory", found.says.visible(400))
        return found

    async def brought(plan: Plan, fleet: Fleet, folders: Sequence[Path]) -> None:
        with teller.sending() as on_progress:
            told = await bring(plan, fleet, folders, cache=cache, on_progress=on_progress)
        teller.brought(told)

    cargo = TrainCargo(
        provisions=provisions, command=asked.command, bring=brought, needs_of=needs_of, on_settled=teller.settled
    )
    wanted = replace(request(asked.env), ranks=asked.ranks)
    cluster, wanted = settled(cluster, wanted, None)
    errand = Errand(
        cluster=cluster,
        request=wanted,
        check=asked.check,
        lease=asked.lease,
        command=resuming(asked.command, provisions.words),
        cargo=cargo,
        subjects=(cargo.subject,),
    )
    if asked.dry:
        from aboard.cli.dry_run import dry_run  # noqa: PLC0415 - for those who ask

        return dry_run(errand, other=None, as_json=False)
    if asked.detach:
        from aboard.cli.launching import detached  # noqa: PLC0415 - for those who ask

        return detached(errand)
    return run(errand)


def resuming(command: Shell, words: TrainWords) -> Shell:
    """The command that goes on from the last checkpoint: where the file says to start elsewhere, it has to be told."""
    if words.settings["resume"] == "auto":
        return command
    return shell("{command:shell} --set train.resume=auto", command=command)


def known_before(words: TrainWords, cluster: Cluster, ranks: int | None) -> list[Finding]:
    """What can be refused without a look at the nodes, if the file says how many slots they have."""
    counts = {
        node.name: ranks or (len(node.picked) if node.picked is not None else node.slots)
        for node in cluster
        if node.slots != 0
    }
    known = {name: count for name, count in counts.items() if count is not None}
    if len(known) < len(counts):
        return []
    training = words.training(model=words.model, tokenizer=words.tokenizer, data=(), validation=(), bf16=False)
    return judged(Boarding(training=training, ranks=known, given=words.given))


def cache_folder(env: Mapping[str, str]) -> Path:
    """Where prepared data is kept: the user's cache, which may go at any time and is made again."""
    base = env.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "aboard" / "data"
