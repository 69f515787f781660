"""The pages of the guides count honestly, and their programs have what their commands name."""

import re

import pytest
from guides import GUIDES, read_guide_page

from aboard.commands.why.diagnosis_view import ALL_SUBJECTS

NAMES = sorted(page.parent.name for page in GUIDES.glob("*/README.md"))


@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_of_a_page(name: str) -> None:
    """The sums are those of its rows, and Aboard's commands are those that the ground test types."""
    read_guide_page(name).check_counts()


@pytest.mark.parametrize("name", NAMES)
def test_the_codes_that_a_page_names_exist(name: str) -> None:
    """`aboard why CODE` works for each code."""
    text = (GUIDES / name / "README.md").read_text("utf-8")
    codes = {each.code for subject in ALL_SUBJECTS for each in subject.diagnoses}
    assert codes.issuperset(re.findall(r"aboard why ([a-z]+-[a-z-]+)", text))


@pytest.mark.parametrize("name", NAMES)
def test_the_overview_has_the_numbers_of_the_pages(name: str) -> None:
    """Commands and edits of the guide and of Aboard, as the page counts them."""
    page = read_guide_page(name)
    typed, edited = page.rows[-1]
    (row,) = re.findall(rf"^\| \[guides/{name}\].*$", (GUIDES.parent / "README.md").read_text("utf-8"), re.MULTILINE)
    assert row.endswith(f"| {typed}, {edited} | {page.ours[0]}, {page.ours[1]} |")
