"""A diagnosis is a failure that we can name; a finding is one occurrence of it."""

import re
from collections.abc import Mapping
from dataclasses import field, fields
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Generic, Self

from aboard.diagnoses.failure_class import FailureClass, RestartClass, RunFix, decide_class
from aboard.diagnoses.fixes import NO_FIX, Advice, Fix, FixCommand, FixTemplate, FixTemplates, Value, name_blanks
from aboard.diagnoses.output_patterns import USUAL_PRECEDENCE, OutputPattern, PatternSource
from aboard.diagnoses.untrusted import Untrusted, escape_lines
from aboard.lazy_dataclass import dataclass

if TYPE_CHECKING:
    # With a default, so that `Finding` is one of any diagnosis; typing has it from Python 3.13 on.
    from typing_extensions import TypeVar

    Declared_co = TypeVar("Declared_co", bound="Diagnosis", covariant=True, default="Diagnosis")
else:
    from typing import TypeVar

    Declared_co = TypeVar("Declared_co", bound="Diagnosis", covariant=True)

_BLANK = re.compile(r"{\w+:shell}")


class Severity(IntEnum):
    """`BLOCK` stops a launch, `WARN` doesn't, `INFO` is a remark."""

    INFO = 1
    WARN = 2
    BLOCK = 3

    @property
    def word(self) -> str:
        return self.name.lower()


class Confidence(IntEnum):
    """How sure a rule is: the cause itself was observed, or a symptom of only this cause, or it is the likeliest."""

    LIKELY = 1
    STRONG = 2
    CERTAIN = 3


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """One failure: its stable code, and everything that `aboard why CODE` and its docs page show about it.

    `severity` is the worst that a finding of it has by default. `symptoms` are texts that people paste into a search
    box. `fixes` are the commands and pieces of advice that a finding can carry, by variant; a single one needs no name,
    and a command is just its text. `remedy` describes the fix in prose; without one, the page lists the fixes.
    `leads_to` lists the codes that it explains on the same nodes. `patterns` are the program messages that indicate
    it; their groups may appear in `explanation`, in braces. The smallest `precedence` of the patterns that match a
    text decides: see `output_patterns`. `log_fix` is the command of the variant "log", for a failure found in a log.
    """

    code: str
    title: str
    explanation: str
    remedy: str = ""
    severity: Severity = Severity.BLOCK
    symptoms: tuple[str, ...] = ()
    fixes: str | FixTemplate | FixTemplates = field(default_factory=dict, hash=False)
    leads_to: tuple[str, ...] = ()
    log_fix: str = ""
    patterns: OutputPattern | tuple[OutputPattern, ...] = ()
    precedence: int = USUAL_PRECEDENCE

    def fix(self, variant: str = "", /, **values: Value) -> Fix:
        """One of its fixes, with the values filled in."""
        template = self.templates[variant]
        return Fix(template.fill(values), variant=variant, values=values, is_advice=isinstance(template, Advice))

    def finding(
        self,
        *,
        nodes: tuple[str, ...],
        seen: str,
        why: str | None = None,
        fix: Fix = NO_FIX,
        severity: Severity | None = None,
        ranks: tuple[int, ...] = (),
        about: tuple[str, ...] = (),
        consequences: "tuple[Finding, ...]" = (),
    ) -> "Finding[Self]":
        """A finding of this diagnosis; `why` defaults to the explanation."""
        return Finding(
            diagnosis=self,
            severity=self.severity if severity is None else severity,
            nodes=nodes,
            seen=escape_lines(seen),
            why=self.explanation if why is None else escape_lines(why),
            fix=fix,
            ranks=ranks,
            about=about,
            consequences=consequences,
        )

    def match_death(self, text: Untrusted) -> tuple[OutputPattern, re.Match[str]] | None:
        """The first of its messages that matches the last output of a dead rank, with the match."""
        found = ((each, text.match(each.regex)) for each in self.messages if PatternSource.DEATH in each.source)
        return next(((message, match) for message, match in found if match), None)

    @property
    def steps(self) -> tuple[FixTemplate, ...]:
        """The unique lines of its fixes, with blanks in capitals; no suggestions, and no line that is only a blank."""
        templates = [template for variant, template in self.templates.items() if variant not in {"near", "known"}]
        lines = ((type(each), line) for each in templates for line in each.text.split("\n"))
        return tuple(dict.fromkeys(kind(name_blanks(line)) for kind, line in lines if not _BLANK.fullmatch(line)))

    @property
    def templates(self) -> Mapping[str, FixTemplate]:
        named = self.fixes if isinstance(self.fixes, Mapping) else {"": self.fixes}
        logged = {"log": self.log_fix} if self.log_fix else {}
        return {
            variant: FixCommand(fix) if isinstance(fix, str) else fix for variant, fix in {**named, **logged}.items()
        }

    @property
    def messages(self) -> tuple[OutputPattern, ...]:
        return (self.patterns,) if isinstance(self.patterns, OutputPattern) else self.patterns


@dataclass(frozen=True, kw_only=True)
class RunFailure(Diagnosis):
    """A failure that can end a run, or hold it up: `restart` is the class by which it is recovered from.

    One whose fixes are of several classes has them as `classified_fixes`; `restart` is that of a finding without any.
    """

    restart: RestartClass
    classified_fixes: Mapping[str, RunFix] = field(default_factory=dict, hash=False)

    @property
    def templates(self) -> Mapping[str, FixTemplate]:
        return {**{variant: each.template for variant, each in self.classified_fixes.items()}, **super().templates}

    def get_restart_class(self, variant: str = "") -> RestartClass:
        fix = self.classified_fixes.get(variant)
        return self.restart if fix is None else fix.restart

    def classify(
        self, variant: str = "", *, everywhere: bool = False, shared_disk: bool = False, own_memory: bool = False
    ) -> FailureClass:
        """The class of a finding with this variant of the fix; see `decide_class`."""
        restart = self.get_restart_class(variant)
        return decide_class(restart, everywhere=everywhere, shared_disk=shared_disk, own_memory=own_memory)


@dataclass(frozen=True, kw_only=True)
class Mistake(RunFailure):
    """An input error that is only a typing mistake: its message says what was observed and what to type.

    It has a code and fixes like any failure, and no page of the catalogue. A program that makes it would make it again.
    """

    restart: RestartClass = FailureClass.PROGRAM
    title: str = ""
    explanation: str = ""


# A failure that does not stop a launch, and something worth knowing that is no failure.
warning = partial(Diagnosis, severity=Severity.WARN)
remark = partial(Diagnosis, severity=Severity.INFO)
run_warning = partial(RunFailure, severity=Severity.WARN)
run_remark = partial(RunFailure, severity=Severity.INFO)


@dataclass(frozen=True, kw_only=True)
class Finding(Generic[Declared_co]):
    """What was observed, where, why it matters, and the fix; the same type before a launch and after a crash.

    `about` names subjects beyond its nodes, such as `pid 4711` or `NCCL_PROTO`: a shared subject shows which of two
    findings explains the other.
    """

    diagnosis: Declared_co
    severity: Severity
    nodes: tuple[str, ...]
    seen: str
    why: str
    fix: Fix
    ranks: tuple[int, ...] = ()
    about: tuple[str, ...] = ()
    consequences: "tuple[Finding, ...]" = ()

    @property
    def code(self) -> str:
        return self.diagnosis.code

    def as_cause(
        self: "Finding[RunFailure]", sure: Confidence, *, since: float | None = None, explains: str = ""
    ) -> "Cause":
        return Cause(**vars(self), sure=sure, since=since, explains=explains)


@dataclass(frozen=True, kw_only=True)
class Cause(Finding[RunFailure]):
    """What explains a run, according to a rule; `since` is when it began by the head's clock, None if unknown.

    Of the causes with the same `explains`, if it is not empty, only the first is reported.
    """

    sure: Confidence
    since: float | None = None
    explains: str = ""

    def as_finding(self) -> Finding[RunFailure]:
        """Without what only the judge needs."""
        return Finding(**{each.name: getattr(self, each.name) for each in fields(Finding)})


def sort_by_severity(findings: list[Finding]) -> list[Finding]:
    """Sorts by severity; findings of equal severity keep their order."""
    return sorted(findings, key=lambda finding: -finding.severity)
