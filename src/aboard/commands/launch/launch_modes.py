"""The ways to run a launch: at this terminal, in the background, as a trial, or only its plan."""

import asyncio
import os
import sys
from dataclasses import replace
from functools import partial

import click
from rich.console import Console

from aboard.commands.launch.launch_view import LaunchView, format_finished_lines, show_end, show_finished
from aboard.commands.launch.view.plan_view import PlanView
from aboard.commands.shared.check_resume import TrainingFinished
from aboard.commands.shared.printed_output import build_console, print_findings, print_notes
from aboard.commands.shared.status_marks import FINE, SEVERITY_MARKS
from aboard.core.exit_codes import EXIT_BLOCKED, EXIT_ERROR, EXIT_FAILED, choose_exit_code
from aboard.core.plan.launcher_export import SETUP_FILE, build_plan_export, format_deepspeed, format_torchrun
from aboard.core.plan.plan import Plan
from aboard.core.probes.facts import Facts
from aboard.core.run.recovery.node_trial import TrialResult, build_trial_finding
from aboard.diagnoses import AboardError, InputError, Severity
from aboard.diagnoses.untrusted import escape_lines
from aboard.diagnoses.usage import commands
from aboard.diagnoses.usage.pasted_commands import quote_command_line
from aboard.engine.background_run import StartReporter, fork_into_background, leave_terminal
from aboard.engine.check.check_observer import NullCheckObserver
from aboard.engine.launch_run import LaunchResult, plan_launch
from aboard.engine.launch_session import LaunchSession
from aboard.engine.records.plan_json import format_plan_json
from aboard.engine.request.dial_first import Links, reuse_links
from aboard.engine.request.launch_spec import LaunchSpec
from aboard.engine.request.typed_launch import TypedLaunch
from aboard.engine.scripts.script_log import ScriptLog
from aboard.engine.trial import run_trial
from aboard.record.runs import Runs


async def run_attached(spec: LaunchSpec, dialer: Links | None = None) -> int:
    """Runs the launch at this terminal and returns the run's exit code."""
    await _send_files(spec, dialer)
    session = LaunchSession(spec)
    console = build_console()
    view = LaunchView(console, session.run)
    for note in spec.notes:
        view.say(f"note: {escape_lines(note)}")
    try:
        launched = await session.conduct(
            check_observer=view.watcher,
            run_observer=view,
            script_observer=view,
            on_report=view.show_preflight,
            dialer=dialer,
        )
    except TrainingFinished as finished:
        return show_finished(console, session.run, finished)
    finally:
        view.close()
    code = show_end(console, session.run, launched, command=spec.command, is_submitted=spec.run is not None)
    Runs(session.run.path.parent).prune()
    sys.stdout.flush()
    await session.requeue()
    return code


def run_detached(spec: LaunchSpec) -> int:
    """Runs the conductor in the background; returns when every rank has started, or when the launch failed."""
    asyncio.run(_send_files(spec))
    session = LaunchSession(spec)
    print_notes(spec.notes)
    started = fork_into_background(session.run)
    if isinstance(started, tuple):
        code, text = started
        click.echo(text, nl=False, err=code != 0)
        return code
    with leave_terminal(session.run):
        _conduct_silently(session, started)
    raise AssertionError("the background process has ended")


def _conduct_silently(session: LaunchSession, start: StartReporter) -> None:
    """Conducts the run; its output is the conductor's log."""
    run = session.run
    console = Console(highlight=False, width=120)
    conducting = session.conduct(
        check_observer=NullCheckObserver(), run_observer=start, script_observer=ScriptLog(sys.stdout)
    )
    try:
        launched = asyncio.run(conducting)
    except TrainingFinished as finished:
        code = show_finished(console, run, finished)
        start.report(code, "".join(f"{line}\n" for line in format_finished_lines(finished, Runs(run.path.parent))))
    except AboardError as error:
        start.report(EXIT_ERROR, f"{error.seen} [{error.code}]\n    {error.fix}\n")
    else:
        start.finish(launched, show_end(console, run, launched, command=session.spec.command))


async def _send_files(spec: LaunchSpec, dialer: Links | None = None) -> None:
    """Sends the working directory if that was asked for; without a dialer, over links of its own."""
    if spec.sync_limit is None:
        return
    from aboard.commands.sync.sync_workdir import send_working_directory  # noqa: PLC0415 - only for those who sync

    async with reuse_links(dialer) as links:
        await send_working_directory(spec.cluster, links, spec.sync_limit)


def print_dry_run(spec: LaunchSpec, *, other: str | None = None, as_json: bool = False) -> int:
    """Prints the plan and any findings; returns the exit code that findings would give the launch."""
    known = None
    if spec.script is not None:
        if not spec.script.is_forced:
            return _print_script(spec, spec.script, needs_plan=as_json or other is not None)
        captured, known = _capture_launch(spec)
        if isinstance(captured, LaunchResult):
            return _print_refusal(captured)
        # Its notes were shown with the capture.
        spec = replace(captured, notes=())
    try:
        plan, found = asyncio.run(plan_launch(spec, check_observer=NullCheckObserver(), known=known))
    except TrainingFinished as finished:
        click.echo("\n".join(format_finished_lines(finished, Runs.of(os.environ))))
        return 0
    print_notes(spec.notes)
    findings = [finding for finding in found if finding.severity > Severity.INFO]
    print_findings(build_console(stderr=True), findings)
    if as_json:
        click.echo(format_plan_json(plan))
    elif other:
        click.echo(_format_for_launcher(plan, other), nl=False)
    else:
        build_console().print(PlanView(plan), crop=False)
    return choose_exit_code(findings)


def _capture_launch(spec: LaunchSpec) -> tuple[LaunchSpec | LaunchResult, Facts]:
    """What the script starts; it runs up to its launcher, and its output goes to stderr."""
    from aboard.engine.scripts.launch_script import capture_launch  # noqa: PLC0415 - only for scripts

    return asyncio.run(capture_launch(spec, ScriptLog(sys.stderr), NullCheckObserver()))


def _print_refusal(result: LaunchResult) -> int:
    print_findings(build_console(stderr=True), [each for each in result.reasons if each.severity > Severity.INFO])
    return EXIT_BLOCKED


def _print_script(spec: LaunchSpec, script: TypedLaunch, *, needs_plan: bool) -> int:
    """Says what a dry run can't know without running the script; an error if the plan itself was asked for."""
    words = quote_command_line(script.script.words)
    seen = f"{words} is not run, so its launcher and the ranks are not known"
    if needs_plan:
        raise InputError.of(commands.LAUNCH_DRY, "--dry-run", seen, "capture", command=words)
    print_notes(spec.notes)
    click.echo(
        f"{words} would run on {spec.cluster.nodes[0].name}, and Aboard would start the ranks once it calls its"
        f" launcher.\nTo see the plan, add --capture: the lines before the launcher are really run."
    )
    return 0


def _format_for_launcher(plan: Plan, other: str) -> str:
    if other == "torchrun":
        return format_torchrun(build_plan_export(plan))
    files = format_deepspeed(build_plan_export(plan))
    texts = {"hostfile": files.hostfile, ".deepspeed_env": files.deepspeed_env, SETUP_FILE: files.setup}
    heredocs = "".join(f"cat > {name} <<'END'\n{text}END\n" for name, text in texts.items() if text)
    first, _, rest = files.command.partition("\n")
    return f"{first}\n{heredocs}{rest}"


def show_trial(spec: LaunchSpec) -> int:
    """Returns 0 if every group passed, 1 if one failed, 2 if the preflight check already failed."""
    asyncio.run(_send_files(spec))
    if spec.script is not None:
        captured, _known = _capture_launch(spec)
        if isinstance(captured, LaunchResult):
            return _print_refusal(captured)
        spec = captured
    run = LaunchSession(spec).run
    console = build_console()
    report, results = asyncio.run(run_trial(spec, run, partial(_print_group, console)))
    if results is None:
        print_findings(console, [finding for finding in report.findings if finding.severity > Severity.INFO])
        return EXIT_BLOCKED
    trial_verdict = build_trial_finding(results)
    if trial_verdict is not None:
        print_findings(console, [trial_verdict])
        return EXIT_FAILED
    click.echo(f"every node passed, alone and together; only the record {run.path} is left")
    return 0


def _print_group(console: Console, group_result: TrialResult) -> None:
    mark = FINE if group_result.passed else SEVERITY_MARKS[Severity.BLOCK]
    who = "+".join(group_result.group) if len(group_result.group) <= 2 else f"all {len(group_result.group)}"  # noqa: PLR2004 - a pair
    console.print(f"[{mark.style}]{mark.sign}[/] {who:24} {group_result.seconds:5.1f} s  ", end="")
    console.print(group_result.outcome, markup=False)
