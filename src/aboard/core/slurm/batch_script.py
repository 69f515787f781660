"""The batch script of a run: readable, complete, and usable without Aboard's submission."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from aboard.core.cluster.interpreter import NO_ENV
from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.core.slurm.job_state import RUN_MARK, UNMONITORED
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.lazy_dataclass import dataclass

# Slurm signals the conductor this long before the time limit, or up to a minute earlier: its events are that coarse.
SIGNAL_SECONDS = 120
_EARLIER_SECONDS = 60
# In a job shorter than 9 minutes: as much of its time, so that it doesn't begin with the signal.
_SIGNAL_SHARE = 0.25
_TIME = re.compile(r"(?:(?P<days>\d{1,5})-)?(?P<parts>\d{1,9}(?::\d{1,9}){0,2})")

_OPTION = re.compile(r"(--[a-z][a-z0-9-]*)(?:[=\s].*)?|(-[A-Za-z]).*")
# The options that are keys of the section `cluster.slurm`, in the order of the script.
_KEYS = {
    "partition": ("--partition", "-p"),
    "account": ("--account", "-A"),
    "qos": ("--qos", "-q"),
    "nodes": ("--nodes", "-N"),
    "gpus_per_node": ("--gpus-per-node",),
    "constraint": ("--constraint", "-C"),
    "exclude": ("--exclude", "-x"),
    "time": ("--time", "-t"),
}
OPTION_KEYS = {option: key for key, options in _KEYS.items() for option in options}
# Options that Aboard sets, or that change what the script runs, how often, or where its output goes.
_OWN_OPTIONS = """
--ntasks -n --ntasks-per-node --tasks-per-node --gpus-per-task --signal --no-kill -k --error -e --input -i --open-mode
--array -a --wrap --wait -W --parsable --test-only --chdir -D --export --export-file --get-user-env --quiet -Q --help
-h --usage --version -V
"""
OWN_OPTIONS = frozenset(_OWN_OPTIONS.split())
_CORE_OPTIONS = {"--exclusive", "--cpus-per-task", "-c", "--cpus-per-gpu", "--mincpus", "--cores-per-socket"}
# Names of variables that differ from their option's.
_VARIABLES = {"--time": "SBATCH_TIMELIMIT", "--mem": "SBATCH_MEM_PER_NODE"}
# Variables that would change what a script does, whatever options it has.
_ALWAYS_DROPPED = ("SBATCH_ARRAY_INX", "SBATCH_ERROR", "SBATCH_GPUS_PER_TASK", "SBATCH_GET_USER_ENV", "SBATCH_WAIT")


@dataclass(frozen=True, kw_only=True)
class BatchCommand:
    """What the script runs: `argv` of the conductor, in `directory`.

    `exports` are set in the script. `secrets` are names only: their values come from the environment of sbatch.
    """

    argv: Sequence[str]
    directory: str
    exports: Mapping[str, str] = field(default_factory=lambda: NO_ENV)
    secrets: Sequence[str] = ()


def format_batch_script(settings: SlurmSettings, command: BatchCommand, *, name: str, run: str | None = None) -> str:
    """The whole script; `name` is the job's name if the user gave none, and the comment ends with the id of the run."""
    return "\n".join([*_format_options(settings, name, run), "", *_format_commands(command), ""])


def list_marked_jobs(queue: str) -> dict[str, list[int]]:
    """The jobs of each run in `squeue --format="%A %k"`; those without the mark of a run are under ""."""
    jobs: dict[str, list[int]] = {}
    for number, _, comment in (line.partition(" ") for line in queue.splitlines()):
        mark = comment.strip().rpartition(" ")[2]
        if number.isdecimal():
            jobs.setdefault(mark.removeprefix(RUN_MARK) if mark.startswith(RUN_MARK) else "", []).append(int(number))
    return jobs


def mark_unmonitored(comment: str) -> str:
    """The comment of a job whose script has started no ranks; "" for a job without the mark of a run."""
    own, _, mark = comment.rpartition(" ")
    return " ".join([*filter(None, [own]), UNMONITORED, mark]) if mark.startswith(RUN_MARK) else ""


def describe_written_secret(script: str) -> str | None:
    """A note if the user's own command seems to contain a secret."""
    scrubber = SecretScrubber()
    scrubber.text(script)
    if not scrubber.removed["secrets"]:
        return None
    return (
        "the command seems to contain a secret, and Slurm keeps a copy of the script; pass it as a variable: --env NAME"
    )


def describe_missing_cores(settings: SlurmSettings, partitions: str, config: str) -> str | None:
    """A note if the job would get one core of each node; from `scontrol show partition -o` and `show config`.

    Slurm gives a task one core by default. It gives all of them if nodes are allocated whole, and some if the
    cluster has a number of cores for each GPU.
    """
    asked = {parse_option_name(option) for option in settings.extra}
    names = settings.partition.split(",") if settings.partition else []
    lines = [
        line
        for line in partitions.splitlines()
        if any(f"PartitionName={name} " in line for name in names) or (not names and "Default=YES" in line)
    ]
    whole = any("OverSubscribe=EXCLUSIVE" in line or "DefCpuPerGPU=" in line for line in lines)
    if asked & _CORE_OPTIONS or not lines or whole or re.search(r"SelectType\s*= select/linear", config):
        return None
    return "Slurm may allocate one core of each node: add --exclusive --mem=0 to the command, or to cluster.slurm.extra"


def list_overriding_variables(script: str) -> tuple[str, ...]:
    """The variables of sbatch that would override the script's options, so they must not be set for it."""
    options = (parse_option_name(line.removeprefix("#SBATCH ")) for line in script.splitlines() if "#SBATCH " in line)
    named = [_VARIABLES.get(name, f"SBATCH_{name[2:].upper().replace('-', '_')}") for name in options if name]
    return (*named, *_ALWAYS_DROPPED)


def parse_option_name(text: str) -> str | None:
    """The name in `--name=value`, `--name value`, `-n4` or `-n 4`; None if the text is not an option."""
    found = _OPTION.fullmatch(text)
    return None if found is None else found[1] or found[2]


def list_request_options(settings: SlurmSettings) -> list[str]:
    """The options for what to ask Slurm for, which salloc takes too."""
    values = ((options[0], getattr(settings, key)) for key, options in _KEYS.items())
    return [*(f"{option}={value}" for option, value in values if value is not None), *settings.extra]


def choose_signal_seconds(time_limit: str | None) -> int:
    """How long before the time limit Slurm signals the conductor; 0 in a job that is too short for a signal.

    The signal may come a minute early. At the limit itself Slurm sends SIGTERM, which stops the run as well.
    """
    limit = _parse_time_limit(time_limit or "")
    if limit is None:
        return SIGNAL_SECONDS
    return max(0, min(SIGNAL_SECONDS, int((limit - _EARLIER_SECONDS) * _SIGNAL_SHARE)))


def _parse_time_limit(text: str) -> int | None:
    """Seconds of MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS and so on; None without a limit."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    parts = [int(part) for part in found["parts"].split(":")]
    if found["days"] is None and len(parts) < 3:  # noqa: PLR2004 - hours, minutes, seconds
        parts.insert(0, 0)
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    # Slurm counts whole minutes, and takes 0 for no limit.
    return (int(found["days"] or 0) * 24 + hours) * 3600 + minutes * 60 + seconds or None


def _format_options(settings: SlurmSettings, name: str, run: str | None) -> Iterator[str]:
    yield "#!/bin/bash"
    options = list_request_options(settings)
    if not any(parse_option_name(option) in ("--job-name", "-J") for option in options):
        yield f"#SBATCH --job-name={name}"
    comments = [option for option in options if parse_option_name(option) == "--comment"]
    yield from (_format_option(option) for option in options if run is None or option not in comments)
    if run is not None:
        own = [option.removeprefix("--comment").lstrip("= ").strip("\"'") for option in comments[-1:]]
        yield "# Aboard finds the job of the run by the end of the comment."
        yield _format_option(f"--comment={' '.join([*own, RUN_MARK + run])}")
    yield "# One task on each node: an agent of Aboard, which starts the ranks there."
    yield "#SBATCH --ntasks-per-node=1"
    yield "# If a node fails, Slurm keeps the job; Aboard reports the node, and stops the run or restarts it."
    yield "#SBATCH --no-kill"
    if seconds := choose_signal_seconds(settings.time):
        yield f"# {seconds} s before the time limit, Slurm signals only the command below, which saves and stops."
        yield f"#SBATCH --signal=B:USR1@{seconds}"
    if not any(parse_option_name(option) in ("--output", "-o") for option in settings.extra):
        yield "# In the directory of the job."
        yield "#SBATCH --output=slurm-%j.out"
    yield "# A requeued job continues the output of its earlier start."
    yield "#SBATCH --open-mode=append"
    yield "# The job gets the variables of the shell that submits it."
    yield "#SBATCH --export=ALL"


def _format_option(option: str) -> str:
    name, equals, value = option.partition("=")
    return f'#SBATCH {name}="{value}"' if equals and re.fullmatch(r"[^\"']* [^\"']*", value) else f"#SBATCH {option}"


def _format_commands(command: BatchCommand) -> Iterator[str]:
    yield f"cd {shlex.quote(command.directory)} || exit 3"
    for name, value in sorted(command.exports.items()):
        yield f"export {name}={shlex.quote(value)}"
    for name in command.secrets:
        yield f"# {name} has to be set in the shell that submits this script: its value is not written here."
    yield "# exec: Slurm's signals reach the process of this script, which has to be Aboard, not bash."
    yield f"exec {shlex.join(command.argv)}"
