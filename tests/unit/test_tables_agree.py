"""Tables that stand in several files, since one of them can't import the other, have the same entries."""

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

import aboard
from aboard.agent.beacon import aboard_beacon, report_receiver
from aboard.commands.command_line import COMMANDS
from aboard.commands.data.command import LOSS_ON
from aboard.commands.export.command import DTYPES
from aboard.config.schema.aboard_yaml import DataSection
from aboard.core import exit_codes
from aboard.core.evidence.node_snapshot import ACTIVITIES
from aboard.core.plan.training_settings import Schedule
from aboard.core.run.rank_phases import BEACON_PHASES
from aboard.doctor.reach import subject as reach
from aboard.sandbox.namespaces.run_in_host import EXIT_HOST_OFF
from aboard.trainer.data.intake.row_formats import FormatName
from aboard.trainer.data.tokens.encoder import LossOn
from aboard.transport import ssh_log

FORMATS = get_args(FormatName)
ROOT = Path(__file__).parents[2]


def _list_values(field: str) -> tuple[str, ...]:
    """What aboard.yaml takes for a field of its data section."""
    return get_args(get_args(DataSection.model_fields[field].annotation)[0])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(aboard_beacon.PHASES, tuple(BEACON_PHASES), id="phases of a rank, in the beacon"),
        pytest.param(report_receiver.PHASES, tuple(BEACON_PHASES), id="phases of a rank, in the supervisor"),
        pytest.param(report_receiver.ACTIVITIES, ACTIVITIES, id="activities of a rank"),
        pytest.param(
            tuple(reach._PHASES), (*(name for name, _pattern in ssh_log._PHASES), "agent"), id="phases of a login"
        ),
        pytest.param(LOSS_ON, get_args(LossOn), id="--loss-on"),
        pytest.param(_list_values("loss_on"), get_args(LossOn), id="data.loss_on"),
        pytest.param(_list_values("format"), FORMATS, id="data.format"),
    ],
)
def test_entries_and_order(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    """The order counts too: phases and activities are compared and sent by number."""
    assert one == other


@pytest.mark.parametrize(
    ("path", "name", "entries"),
    [
        ("trainer/model/export.py", "DTYPES", DTYPES),
        ("trainer/learning_rate.py", "_SHAPES", get_args(Schedule)),
        ("trainer/data/intake/record_to_row.py", "_ROW_BUILDERS", FORMATS),
    ],
)
def test_keys_of_a_table(path: str, name: str, entries: tuple[str, ...]) -> None:
    """Read from the source, since importing some of these files imports torch."""
    tree = ast.parse((Path(aboard.__file__).parent / path).read_text())
    tables = [
        each.value
        for each in tree.body
        if isinstance(each, ast.Assign | ast.AnnAssign)
        and ast.unparse(each.targets[0] if isinstance(each, ast.Assign) else each.target) == name
    ]
    assert [
        {ast.literal_eval(key) for key in table.keys if key is not None}
        for table in tables
        if isinstance(table, ast.Dict)
    ] == [set(entries)]


def test_exit_codes_in_the_docs() -> None:
    """The page has each code with its meaning, and each constant is one of them."""
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", (ROOT / "docs/scripting.md").read_text("utf-8"), re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == exit_codes.EXIT_CODES
    constants = {value for name, value in vars(exit_codes).items() if re.fullmatch(r"EXIT_(?!CODES)\w+", name)}
    assert {0, *constants} == {*exit_codes.EXIT_CODES}
    assert EXIT_HOST_OFF == exit_codes.EXIT_HOST_OFF


def test_commands_in_the_readme() -> None:
    """One row for each, in the order of --help."""
    section = (ROOT / "README.md").read_text("utf-8").partition("## Commands")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [*COMMANDS]
