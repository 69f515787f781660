"""`aboard why`."""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import time

import click
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.text import Text

from aboard import __version__
from aboard.commands.launch.slurm_forwarding import find_slurm_runs, forward_to_batch_host
from aboard.commands.shared.copyable_commands import CopyableCommands
from aboard.commands.shared.findings.findings_view import FindingsView
from aboard.commands.shared.json_output import dump_json
from aboard.commands.shared.number_format import format_count
from aboard.commands.shared.options.completion import complete_nodes, complete_words, list_run_names
from aboard.commands.shared.printed_output import build_console
from aboard.commands.shared.progress_bar import ReadingView
from aboard.commands.why.diagnosis_view import ALL_SUBJECTS, CodeListView, DiagnosisView
from aboard.commands.why.external_jobs_command import print_nodes_verdict, print_pids_verdict
from aboard.commands.why.log_files import LogExplanation, diagnose_logs
from aboard.commands.why.verdict_view import ReplayView, VerdictView
from aboard.core.exit_codes import EXIT_BLOCKED, EXIT_WARNED, choose_exit_code
from aboard.core.run.run_progress import describe_attempt
from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.core.slurm.job_state import JobStatus
from aboard.core.text.durations import format_duration
from aboard.core.text.input_text import find_nearest
from aboard.diagnoses import AboardError, InputError, Problem, Severity
from aboard.diagnoses.catalogue import all_diagnoses
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import commands
from aboard.engine.conductor_client import ask_why
from aboard.engine.records.bundle_replay import replay_bundle
from aboard.engine.records.replay_run import NEWEST, find_default_run, judge_finished_run
from aboard.engine.records.run_explanation import explain_judgement, explain_run
from aboard.engine.records.status import find_resume_command, summarize_run
from aboard.record.run_directory import RunDirectory
from aboard.record.runs import Runs

DIAGNOSES_BY_CODE = {
    diagnosis.code: (subject, diagnosis) for subject in ALL_SUBJECTS for diagnosis in subject.diagnoses
}


def complete_runs_and_codes(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    codes = (code for code, (_subject, diagnosis) in DIAGNOSES_BY_CODE.items() if code == diagnosis.code)
    return complete_words([*list_run_names(typed), *codes], typed)


@click.command()
@click.argument("words", nargs=-1, metavar="[RUN|CODE]", shell_complete=complete_runs_and_codes)
@click.option("-v", "--verbose", is_flag=True, help="Also show what was ruled out and what could not be observed.")
@click.option("--codes", is_flag=True, help="List all codes.")
@click.option("--log", "logs", multiple=True, metavar="FILE…", help="Diagnose logs from any launcher; - reads stdin.")
@click.option("--bundle", metavar="FILE", help="Diagnose a run packed by `aboard bundle`.")
@click.option(
    "--nodes",
    multiple=True,
    metavar="NODES…",
    shell_complete=complete_nodes,
    help="Diagnose a job on these nodes, whatever launched it.",
)
@click.option(
    "--pid", "pids", multiple=True, metavar="PID…", help="Diagnose processes on this machine, whatever launched them."
)
@click.option("--report-unknown", is_flag=True, help="With --log: print unrecognized lines, redacted, for an issue.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def why(
    words: tuple[str, ...],
    verbose: bool,
    codes: bool,
    logs: tuple[str, ...],
    bundle: str | None,
    nodes: tuple[str, ...],
    pids: tuple[str, ...],
    report_unknown: bool,
    as_json: bool,
) -> None:
    """Explain why a RUN is stuck, slow or dead: which node or rank, why, and the command that fixes it.

    For an active run, Aboard queries the nodes now. A finished run is diagnosed again from its record, which has the
    last snapshots of the nodes; if the verdict differs from the recorded one, both are shown. The default is the
    newest run that has failed since you last asked, or else the newest active run, or else the newest run. With the
    CODE of a finding, Aboard explains that code.

    --bundle diagnoses someone else's record in the same way.

    --log diagnoses the output of torchrun, DeepSpeed, Accelerate, NCCL or Slurm, kernel logs, dumps of torch's flight
    recorder and of py-spy, and reports of NCCL's RAS, nvidia-smi and Slurm. Exit code: 0 no trouble was seen; 1 trouble
    that Aboard doesn't recognize; 2 a verdict; 3 the command is wrong, or there is nothing to read.

    --report-unknown prints the lines that look like trouble and are not recognized, and the lines before them, as the
    text of an issue. Secrets, users and addresses are removed; read it before you post it.

    --nodes and --pid diagnose a running job that torchrun, DeepSpeed, Accelerate, srun or a script started. --nodes
    inspects those of your processes on NODES (same syntax as `aboard check`) that have RANK and WORLD_SIZE set; --pid
    inspects the PIDs you pass. The processes are neither stopped nor signalled. To show stacks, Aboard needs py-spy on
    the nodes: pip install py-spy. The exit codes are the same as with --log.
    """
    given = {"--log": logs, "--bundle": bundle is not None, "--nodes": nodes, "--pid": pids}
    _refuse_combined_options([option for option, value in given.items() if value], words)
    if logs:
        print_log_explanation((*logs, *words), as_json=as_json, report_unknown=report_unknown)
    if nodes:
        print_nodes_verdict((*nodes, *words), as_json=as_json, verbose=verbose)
    if pids:
        print_pids_verdict((*pids, *words), as_json=as_json, verbose=verbose)
    if bundle is not None:
        print_bundle_verdict(bundle, as_json=as_json, verbose=verbose)
    what = _get_single_word(words)
    if as_json and (codes or what in DIAGNOSES_BY_CODE):
        raise click.UsageError("--json explains runs, logs and jobs; it has no codes")
    console = build_console()
    if codes:
        console.print(CodeListView(ALL_SUBJECTS), crop=False)
    elif what is not None and what in DIAGNOSES_BY_CODE:
        console.print(DiagnosisView(*DIAGNOSES_BY_CODE[what]), crop=False)
    else:
        runs = Runs.of(os.environ)
        run = _find_default_run(runs) if what is None else _find_run(what)
        where = forward_to_batch_host(run, what)
        if as_json:
            click.echo(dump_json(explain_run(run, where.status if where else None)))
        else:
            _print_run_verdict(console, run, where.status if where else None, verbose=verbose)
        runs.note_question()
        active = next((each.id for each in runs.all() if each.live), None) if what is None and not run.live else None
        if active is not None and not as_json:
            click.secho(f"aboard why {active}    # the run that is active", dim=True)


def _refuse_combined_options(given: Sequence[str], words: Sequence[str]) -> None:
    """Refuses options that exclude each other."""
    if len(given) > 1 or ("--bundle" in given and words):
        seen = "--log, --bundle, --nodes and --pid cannot be combined"
        raise InputError.of(commands.WHY_OPTIONS, "aboard why", seen)


def _get_single_word(words: tuple[str, ...]) -> str | None:
    if len(words) > 1:
        seen = f"more than one run or code was given: {escape_text(' '.join(words))}"
        raise InputError.of(commands.WHY_WORDS, "aboard why", seen, word=words[0])
    return words[0] if words else None


def _find_default_run(runs: Runs) -> RunDirectory:
    jobs = find_slurm_runs(runs.all()[:NEWEST])
    return find_default_run(runs, {name for name, job in jobs.items() if job.is_active})


def _find_run(what: str) -> RunDirectory:
    try:
        return Runs.of(os.environ).find(what)
    except AboardError:
        near = find_nearest(what, DIAGNOSES_BY_CODE)
        fix = commands.WHY_CODE.fix("near", code=near) if near else commands.WHY_CODE.fix("list")
        fix = commands.WHY_CODE.fix("log", path=what) if Path(what).is_file() else fix
        seen = f"there is no code or run '{escape_text(what)}'"
        if what in all_diagnoses():
            seen = f"'{what}' has no page: the message of such a typing mistake says what to type"
        raise InputError(commands.WHY_CODE, [Problem(where="aboard why", seen=seen, fix=fix)]) from None


def _print_run_verdict(console: Console, run: RunDirectory, job: JobStatus | None, *, verbose: bool) -> None:
    for attempt in summarize_run(run).attempts:
        click.echo(describe_attempt(attempt))
    if run.live:
        click.echo(f"{run.id} is running:")
        console.print(VerdictView(run.id, asyncio.run(ask_why(run)), verbose=verbose), crop=False)
        return
    judgement = judge_finished_run(run, job)
    if not judgement.why.findings and not judgement.changed:
        click.echo(f"{_describe_end(run)}; nothing wrong was found")
        return
    click.echo(f"{_describe_end(run)}:")
    console.print(ReplayView(judgement, now=__version__, verbose=verbose), crop=False)
    resume = find_resume_command(run) if summarize_run(run).state in ("failed", "stopped") else ""
    if resume:
        console.print(CopyableCommands(resume, first=Text("  next  ", style="dim")), crop=False)
        console.print()
    code = judgement.why.findings[0].code if judgement.why.findings else ""
    if code in DIAGNOSES_BY_CODE:
        click.secho(f"aboard why {code}    # explains this code", dim=True)


def _describe_end(run: RunDirectory) -> str:
    summary = summarize_run(run)
    ended = f" {format_duration(max(0.0, time() - run.written))} ago" if run.written else ""
    reason = f" ({summary.note})" if summary.note else ""
    verb = "" if summary.state in ("failed", "finished", "stopped") else "was "
    return f"{run.id} {verb}{summary.state}{ended}{reason}"


_LOG_EXIT_CODES = {"verdict": EXIT_BLOCKED, "trouble": EXIT_WARNED}
_MOST_UNREAD = 8
_MOST_NETWORKS = 8
_CLEAN = {
    "completed": "no failure was found; the log says that the run completed",
    "progress": "no failure was found; the run makes progress up to the end of the log",
    "healthy": "no failure was found; the report says that all is well",
    "unknown": "no trouble seen; the log doesn't show whether the run went on",
}


def print_log_explanation(names: Sequence[str], *, as_json: bool, report_unknown: bool) -> None:
    """Diagnoses the logs and exits: 0 no trouble, 1 trouble that Aboard doesn't recognize, 2 a verdict."""
    explanation = _read_logs(names)
    if report_unknown:
        _print_unknown_report(explanation)
    elif as_json:
        click.echo(dump_json(explanation))
    else:
        if explanation.outcome in _CLEAN:
            click.echo(f"{_CLEAN[explanation.outcome]} ({_describe_files(explanation)})")
            if explanation.last and explanation.outcome == "unknown":
                click.secho(f"the last line is: {explanation.last[-1].visible(400)}", dim=True)
        if explanation.findings:
            build_console().print(FindingsView(explanation.findings, in_full=True), crop=False)
        if explanation.outcome == "trouble" and explanation.before:
            click.secho("the lines before it:", dim=True)
            for line in explanation.before:
                click.secho(f"  {line.visible(200)}", dim=True)
        if explanation.findings:
            click.secho(f"aboard why {explanation.findings[0].code}    # explains this code", dim=True)
        unread = [f"not judged: {escape_text(each)}" for each in explanation.unread[:_MOST_UNREAD]]
        for each in (*(line.visible(400) for line in explanation.nccl[:_MOST_NETWORKS]), *unread):
            click.secho(each, dim=True)
    sys.exit(_LOG_EXIT_CODES.get(explanation.outcome, 0))


def _describe_files(explanation: LogExplanation) -> str:
    """`24 lines of 1 log, 16 flight-recorder dumps of torch`."""
    kinds = Counter(explanation.kinds)
    lines = f"{format_count(explanation.lines, 'line')} of " * bool(explanation.lines)
    return lines + ", ".join(format_count(count, kind) for kind, count in kinds.most_common())


def _print_unknown_report(explanation: LogExplanation) -> None:
    """Prints what Aboard does not recognize as the text of an issue, without secrets."""
    if not explanation.unknown:
        click.echo("every line that looks like trouble is recognized: there is nothing to report")
        return
    shown = "\n".join(line.visible(1000) for line in explanation.unknown)
    verdict = explanation.findings[0].code if explanation.findings else "none"
    click.echo(
        f"aboard {__version__}: `aboard why --log` does not recognize these lines (verdict: {verdict})\n\n"
        f"```text\n{SecretScrubber(hide_addresses=True).text(shown)}\n```\n\n"
        "What failed in the end, and how it was found:\n"
    )


def _read_logs(names: Sequence[str]) -> LogExplanation:
    if not sys.stderr.isatty():
        return diagnose_logs(names)
    with ReadingView(build_console(stderr=True)) as reading:
        return diagnose_logs(names, progress=reading.update)


def print_bundle_verdict(name: str, *, as_json: bool, verbose: bool) -> None:
    """Diagnoses a bundle and exits with the same codes."""
    unpacked = replay_bundle(Path(name))
    judgement = unpacked.replayed
    if not as_json:
        click.secho(f"{judgement.run}, packed by aboard {unpacked.version}", dim=True)
        for attempt in unpacked.attempts:
            click.echo(attempt)
    if as_json:
        click.echo(dump_json(explain_judgement(judgement)))
    elif judgement.why.findings or judgement.changed:
        build_console().print(ReplayView(judgement, now=__version__, verbose=verbose), crop=False)
    else:
        click.echo("nothing wrong was found")
    sys.exit(choose_exit_code(judgement.why.findings, blocking=Severity.WARN))
