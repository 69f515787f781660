"""What `aboard why CODE` tells of each diagnosis."""

from aboard.commands.why.diagnosis_view import ALL_SUBJECTS
from aboard.diagnoses import Mistake
from aboard.diagnoses.catalogue import all_diagnoses


def test_each_diagnosis_is_told_whole() -> None:
    """A title, a symptom, a reason and something to do."""
    for subject in ALL_SUBJECTS:
        for each in subject.diagnoses:
            assert all((each.title, each.explanation, each.remedy or each.steps, each.symptoms, *each.symptoms)), (
                each.code
            )


def test_each_diagnosis_has_its_page() -> None:
    """What is declared is told, but typing mistakes; probes that fail have one each, by their name."""
    told = {each.code for subject in ALL_SUBJECTS for each in subject.diagnoses}
    declared = {each.code for each in all_diagnoses().values() if not isinstance(each, Mistake)}
    assert sorted(declared - told) == []
    assert sorted(code for code in told - declared if not code.startswith("unknown-")) == []
