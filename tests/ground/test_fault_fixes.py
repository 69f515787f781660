"""The fault bench types what a verdict or a check prints, and says whether that mended it; nothing is healed before."""

from collections.abc import Iterator

import pytest

from aboard.sandbox.faults.host.disk import DiskFull
from aboard.sandbox.faults.host.ssh_server import SshdStopped
from faults_cases import Case
from faults_fix import NOT_MENDED, SILENT, apply_fix_before_launch, type_all_lines
from faults_stage import Stage
from faults_troubles import Broken

pytestmark = pytest.mark.ground


@pytest.fixture
def stage(box_name: str) -> Iterator[Stage]:
    made = Stage(box_name)
    yield made
    made.box.down()


def test_a_fix_that_only_looks_has_not_mended_it(stage: Stage) -> None:
    """Who looks at a full disk still has a full disk, and the bench says so."""
    full = Broken(fault=DiskFull(path="/private/out"))
    words = ("--set", "cluster.workdir=/private/out")
    case = Case(name="full", row=60, when="before", codes=("storage-full",), words=words)
    with full.on(stage, "n2", 2):
        told = apply_fix_before_launch(stage, case)
    assert told["fix_typed"].startswith(NOT_MENDED)
    assert told["fix_lines"]


def test_what_a_check_prints_is_typed_next(stage: Stage) -> None:
    """A verdict that has a node checked again is followed to where the mend stands."""
    case = Case(name="silent", row=3, when="before", codes=("reach-refused",))
    with Broken(fault=SshdStopped()).on(stage, "n3", 4):
        typed = type_all_lines(stage, "aboard check -i n3    # when it is back, launch again")
        assert [each.where for each in typed[:2]] == ["head", "n3"]
        assert typed[1].line.startswith("sudo systemctl start ssh")
        assert not [finding for finding in stage.check() if finding["code"] == "reach-refused"]
        stage.box.host("n3").sshd_stop()
        assert apply_fix_before_launch(stage, case)["fix_typed"] == SILENT


def test_a_line_that_is_no_command_is_told(stage: Stage) -> None:
    """Words for a reader are no fix unless they stand behind a #; a place must be a node."""
    assert [
        each.code for each in type_all_lines(stage, "fewer data workers    # on n1; it is full\n# a smaller batch")
    ] == [127]
    assert [each.code for each in type_all_lines(stage, "df -h    # on n1: which one?")] == [126]
