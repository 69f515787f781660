"""`aboard train` on a login node: prepares the data and the model there, then submits the training as a job."""

import os
from collections.abc import Sequence

from rich.console import Console

from aboard.cli.runs.prepare_training import PreparationReporter
from aboard.cli.runs.slurm_submission import check_submission, print_batch_script, submit_and_follow
from aboard.cli.runs.training import find_early_findings
from aboard.config.this_machine import get_cache_folder
from aboard.config.training.train_settings import TrainSettings
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.exit_codes import EXIT_BLOCKED
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.ui.findings_view import FindingsView


def prepare_and_submit(
    config: TrainSettings, job: SlurmSettings, argv: Sequence[str], *, ranks: int | None, dry: bool, detach: bool
) -> int:
    """A mistake in the settings or the data is found before the job waits in a queue.

    The login node often is the only machine with access to the Internet. Where homes are shared, the job finds what
    was prepared; otherwise its first node prepares it again.
    """
    console = Console(highlight=False)
    nodes = tuple(Node(name=f"node{number + 1}", slots=job.gpus_per_node) for number in range(job.nodes))
    if early := find_early_findings(config, Cluster(nodes=nodes), ranks):
        console.print(FindingsView(early, in_full=False), crop=False)
        return EXIT_BLOCKED
    if not dry:
        check_submission(job, argv)
    if PreparationReporter(console, config).provide(get_cache_folder(os.environ)) is None:
        return EXIT_BLOCKED
    if dry:
        return print_batch_script(job, argv)
    return submit_and_follow(job, argv, detach=detach)
