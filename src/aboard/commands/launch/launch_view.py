"""The output of a launch: the preflight check, the rank table with the ranks' lines above it, and the summary."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import assert_never

from rich.console import Console
from rich.live import Live
from rich.text import Text

from aboard.commands.check.live_view import CheckLiveView
from aboard.commands.launch.view.finished_run import FinishedRun, FinishedRunView, format_summary_lines
from aboard.commands.launch.view.live_view import LaunchLiveView
from aboard.commands.launch.view.plain_lines import PlainLaunchWriter
from aboard.commands.shared.check_resume import TrainingFinished
from aboard.commands.shared.copyable_commands import CopyableCommands
from aboard.commands.shared.labelled_text import wrap_labelled
from aboard.commands.shared.local_checkpoints import find_training_run
from aboard.commands.shared.log_lines import LogLineFormatter, format_script
from aboard.commands.shared.printed_output import print_findings, print_report, print_warnings
from aboard.commands.shared.status_marks import FINE
from aboard.core.cluster.node_sets import fold_names
from aboard.core.exit_codes import EXIT_BLOCKED
from aboard.core.run import event_kinds as kinds
from aboard.core.run.events import Event
from aboard.core.run.recovery.recovery_policy import Action
from aboard.core.run.run_state import WHY_CHARS, describe_spare, describe_unsent
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.untrusted import escape_lines, quote_word
from aboard.doctor.death.folded_tracebacks import TracebackFolder
from aboard.doctor.network import diagnoses as network
from aboard.doctor.shared.fix_commands import read_elsewhere
from aboard.engine.check.check_cluster import CheckReport
from aboard.engine.check.check_observer import CheckObserver, NullCheckObserver
from aboard.engine.conductor.conductor import Conductor
from aboard.engine.conductor.control_socket import build_live_progress
from aboard.engine.launch_run import LaunchResult
from aboard.engine.records.read_logs import LogFollower, LogQuery
from aboard.record.json_documents import read_document, read_training
from aboard.record.rank_logs.log_reader import LogReader
from aboard.record.rank_logs.merged_logs import LineSelection
from aboard.record.run_directory import RunDirectory
from aboard.record.runs import Runs
from aboard.record.slurm_job import read_slurm_job

# The launch picks another port by itself.
AUTO_FIXED_CODE = network.PORT_TAKEN.code
# How long new lines may be shown at a time: Ctrl-C and the nodes wait meanwhile. A rank can print faster than that.
SHOW_SECONDS = 0.5
# At the end: nobody reads more on a terminal; a file should have all, but for a flood.
LAST_SECONDS = {True: 2.0, False: 20.0}
# How long lines may lag behind before the oldest are skipped.
BEHIND_SECONDS = 5.0


class LineBacklog:
    """The lines of all ranks that were not shown yet; the next turn begins with those that there was no time for.

    Where ranks print faster than their lines can be shown, older ones are skipped: others would show nothing any more.
    """

    def __init__(self, follower: LogFollower, lines: LogLineFormatter, *, patience: float = BEHIND_SECONDS) -> None:
        self._follower = follower
        self._lines = lines
        self._rest: Iterator[str] = iter(())
        self._behind: float | None = None
        self._patience = patience

    def show(self, say: Callable[[str], None], seconds: float, *, last: bool = False) -> bool:
        """Shows lines for that long; returns whether these were all."""
        began = monotonic()
        deadline = began + seconds
        if self._behind is not None and began - self._behind > self._patience and not last:
            self._rest, self._behind = iter(()), None
            self._follower.skip()
            say("… lines are skipped, since ranks print faster than they are shown: aboard logs -n all")
        for is_new in (False, True):
            if is_new:
                self._rest = self._list_new(last=last)
            for line in self._rest:
                say(line)
                if monotonic() > deadline:
                    self._behind = self._behind or began
                    return False
        self._behind = None
        return True

    def _list_new(self, *, last: bool) -> Iterator[str]:
        for log_line in self._follower.more(last=last):
            yield from self._lines.text(log_line)


class LaunchView:
    """A terminal shows the rank table below the ranks' lines; a pipe gets plain lines."""

    def __init__(self, console: Console, run: RunDirectory) -> None:
        self._console = console
        self._run = run
        self._conductor: Conductor | None = None
        # The verdict that was printed last.
        self._shown: tuple[Finding, ...] = ()
        # Whether a script's launcher was.
        self._captured = False
        # What a script was last seen doing.
        self._waited = ""
        self._styled = console.is_terminal
        self._lines = LogLineFormatter(styled=self._styled)
        self._reader: LogReader | None = None
        self._backlog: LineBacklog | None = None
        self._live = LaunchLiveView(console) if self._styled else None
        self._plain = PlainLaunchWriter(self._write)
        self._check = CheckLiveView()
        self._looking: Live | None = None
        self._look()

    @property
    def watcher(self) -> CheckObserver:
        return self._check if self._styled else NullCheckObserver()

    def show_preflight(self, report: CheckReport) -> None:
        """Shows the preflight warnings that do not stop the run, before it begins."""
        self._stop_looking()
        if self._captured:
            self.say(f"checked {fold_names(node.name for node in report.facts.cluster)} in {report.seconds:.1f} s")
        print_warnings(self._console, report.findings, without=AUTO_FIXED_CODE)

    def say(self, text: str) -> None:
        if self._live is not None:
            self._live.say(text)
        else:
            self._write(text)

    def script_line(self, node: str, stream: str, text: str, *, of_rank: bool = False) -> None:
        """Shows a line that the script has printed, unless it is shown as that of its rank."""
        self._stop_looking()
        if not of_rank:
            self.say(f"{format_script(node, stream)} {text}")

    def script_captured(self, text: str, notes: Sequence[str]) -> None:
        """Shows which launcher was captured, how its command is understood, and the check that follows."""
        self._stop_looking()
        for line in (text, *(f"note: {escape_lines(note)}" for note in notes)):
            self.say(line)
        self._captured = True
        if self._live is not None:
            # A terminal shows one of them at a time.
            self._live.close()
        self._look()

    def script_note(self, text: str) -> None:
        """Shows what holds for the script."""
        self.say(f"note: {text}")

    def script_waits(self, text: str) -> None:
        """Shows what a script does before it calls its launcher: below the lines, or each new thing in a line."""
        if self._live is not None:
            self._live.wait_for(text)
        elif text.partition(";")[0] != self._waited:
            self._waited = text.partition(";")[0]
            if text:
                self._write(text)

    def script_resumes(self) -> None:
        """Shows all that ranks printed before the script goes on."""
        self._finish_lines()
        if self._live is not None:
            self._live.wait_for("")

    def began(self, conductor: Conductor) -> None:
        self._stop_looking()
        if self._conductor is not None:
            # A further run of a script.
            self._plain = PlainLaunchWriter(self._write)
        self._conductor = conductor
        self._reader = LogReader(self._run.logs)
        # A run that a further Slurm job continues has output already.
        earlier = self._reader.list_segments()
        query, tracebacks = LogQuery(selection=LineSelection()), TracebackFolder(self._run.id)
        follower = LogFollower(self._reader, query, listing=earlier, tracebacks=tracebacks)
        self._backlog = LineBacklog(follower, self._lines)

    def event(self, event: Event) -> None:  # noqa: C901 - an arm for each kind
        """Shows the verdict on a generation that failed before anything is done about it; `show_end` shows the last."""
        match event.body:
            case kinds.Settling(why=why):
                self._show_recovery(why.visible(WHY_CHARS))
            case kinds.Recovering(decision=decision):
                if decision.action is not Action.STOP:
                    self._show_recovery(decision.why)
            case kinds.SpareChanged(why=why):
                self.say(f"warning: {describe_spare(event.node, why.visible(WHY_CHARS))}")
            case kinds.Unsent() as unsent:
                self.say(describe_unsent(unsent))
            case kinds.AttemptStarted(number=number):
                if number > 1:
                    # An attempt may be over before the next tick.
                    self.tick(event.at)
            case kinds.SteppingStarted() | kinds.CaughtUp() | kinds.VerdictChanged() | kinds.Deciding():
                pass
            case kinds.Stopping() | kinds.Restarting() | kinds.Finished() | kinds.UnknownEvent():
                pass
            case kinds.ChildReport() | kinds.NodeReport() | kinds.ConnectionChange() | kinds.Bookkeeping():
                pass
            case forgotten:
                assert_never(forgotten)

    def _show_recovery(self, why: str) -> None:
        if self._conductor is not None:
            if self._shown is not self._conductor.verdict:
                self._shown = self._conductor.verdict
                print_findings(self._console, self._shown)
            self.say(f"recovery: {why}")

    def tick(self, now: float) -> None:
        if self._conductor is None:
            return
        if self._backlog is not None:
            self._backlog.show(self.say, SHOW_SECONDS)
        progress = build_live_progress(self._conductor)
        if self._live is not None:
            self._live.update(progress)
        else:
            self._plain.update(progress)

    def close(self) -> None:
        self._stop_looking()
        self._finish_lines()
        if self._live is not None:
            self._live.close()

    def _look(self) -> None:
        """Shows how far the check of the nodes is, on a terminal."""
        if self._styled:
            self._looking = Live(self._check, console=self._console, transient=True, refresh_per_second=8)
            self._looking.start()

    def _stop_looking(self) -> None:
        """Ends the view of the preflight check."""
        if self._looking is not None:
            self._looking.stop()
            self._looking = None

    def _finish_lines(self) -> None:
        """Shows what ranks printed after the last tick."""
        if self._reader is not None:
            if self._backlog is not None and not self._backlog.show(self.say, LAST_SECONDS[self._styled], last=True):
                self.say(f"… the rest is not shown: aboard logs {self._run.id}")
            self._reader.close()
            self._reader = None

    def _write(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def show_finished(console: Console, run: RunDirectory, finished: TrainingFinished) -> int:
    """Reports that the training is already complete, and removes the directory of this run, which never started.

    That of a Slurm job may have the record of the job before.
    """
    runs = Runs(run.path.parent)
    if not run.slurm_job.exists():
        runs.remove(run)
    done, *following = format_finished_lines(finished, runs)
    if console.is_terminal:
        mark = Text(f"{FINE.sign} ", style=FINE.style)
        lines = "\n".join(line.removeprefix("next ") for line in following)
        console.print(
            *wrap_labelled(mark, done.removeprefix("done: "), console.width, style=FINE.style), sep="\n", crop=False
        )
        console.print(CopyableCommands(lines, first=Text("  next  ", style="dim")), crop=False)
    else:
        sys.stdout.writelines(f"{line}\n" for line in (done, *following))
    return 0


def format_finished_lines(finished: TrainingFinished, runs: Runs) -> Iterator[str]:
    """Which run trained it, up to which step, where the model is, and how to train it further."""
    resume = finished.resume
    folder, folder_text = Path(resume.folder.raw()), resume.folder.visible(500)
    run = find_training_run(folder, runs)
    step, steps = resume.marker.step, finished.steps
    progress = f"step {step:,} of {steps:,}" if step == steps else f"step {step:,} ({steps:,} requested)"
    where = folder_text if folder.is_dir() else f"{folder_text} on {resume.node}"
    ended = "is already complete"
    if finished.stale is not None:
        progress = f"step {step:,} of {steps:,}"
        ended = f"has already stopped early, after {finished.stale} evaluations without improvement"
    yield f"done: training {ended}; {progress} is saved in {where}{f' by {run}' if run else ''}"
    best = finished.best
    # A checkpoint is exported as it is; a run, or the directory of all, by its best one.
    what = run or (resume.folder.quote() if best is None else quote_word(str(folder.parent)))
    adapter = bool(resume.marker.training.get("adapter"))
    model = "the LoRA adapter" if adapter else "the model" if best is None else f"the best checkpoint ({best})"
    yield f"next aboard export {what} --to trained    # exports {model} for {'PEFT' if adapter else 'transformers'}"
    yield f"next {finished.further}    # trains it further"


def show_end(
    console: Console, run: RunDirectory, result: LaunchResult, *, command: str, is_submitted: bool = False
) -> int:
    """Prints the findings that stopped the launch, or the summary of the run; returns the exit code."""
    reader = _choose_reader(run, is_submitted=is_submitted)
    if result.outcome is None or result.progress is None:
        reasons = [finding for finding in result.reasons if finding.severity > Severity.INFO]
        print_findings(console, read_elsewhere(reasons, run.id, reader))
        if result.script is not None and not result.reasons:
            console.print(
                f"not monitored: the script on {result.script.node} {result.script.reason}, and called no launcher",
                markup=False,
            )
            return 0
        return (result.script.exit_code if result.script is not None else 0) or EXIT_BLOCKED
    end = FinishedRun(
        progress=result.progress,
        findings=read_elsewhere(result.findings, run.id, reader),
        exit_code=result.outcome.code,
        directory=str(run.path),
        command=command,
        dropped=result.dropped,
        continuation=result.continuation,
        reader=reader,
        adapter=bool((read_training(read_document(run.plan)) or {}).get("adapter")),
    )
    print_report(console, FinishedRunView(end), format_summary_lines(end))
    return result.outcome.code


def _choose_reader(run: RunDirectory, *, is_submitted: bool) -> str:
    """What starts the commands that read the record; without the login node's script in it, homes are not shared."""
    job = read_slurm_job(run) if is_submitted and not run.batch_script.exists() else None
    if job is None or not job.batch_host:
        return "aboard"
    node, python = quote_word(job.batch_host), quote_word(sys.executable)
    return f"srun --nodes=1 --ntasks=1 --nodelist={node} {python} -m aboard"
