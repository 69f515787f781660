"""The documentation: what its sources name exists, and the site that is built of them has a page for every code."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aboard.commands.why.diagnosis_pages import build_pages
from aboard.commands.why.diagnosis_view import ALL_SUBJECTS
from aboard.diagnoses.catalogue import all_diagnoses

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CODE_PAGES = {DOCS / "codes" / name: text for name, text in build_pages(ALL_SUBJECTS).items()}
SOURCES = (*ROOT.glob("*.md"), *DOCS.glob("*.md"), *DOCS.glob("decisions/*.md"))
PAGES = {**{path: path.read_text("utf-8") for path in SOURCES}, **CODE_PAGES}

BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LITERAL = re.compile(r"`[^`]*`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"`([a-z]+(?:-[a-z0-9]+)+)`")


def list_anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_link_has_its_target() -> None:
    """Each link leads to a file and to a heading that it has; a source's to a file of the checkout, as on a forge."""
    broken = []
    for page, text in PAGES.items():
        for name, anchor in LINK.findall(LITERAL.sub("", BLOCK.sub("", text))):
            target = (page.parent / name).resolve() if name else page
            there = DOCS / "codes" not in target.parents and target.exists()
            there = there or (page in CODE_PAGES and target in CODE_PAGES)
            if not there or (anchor and anchor not in list_anchors(PAGES[target])):
                broken.append((page.name, name, anchor))
    assert broken == []


def test_every_code_that_is_named_exists() -> None:
    """An inline literal that begins as codes do is a code, so the site links it to its page if it has one."""
    codes = {path.stem for path in CODE_PAGES} | set(all_diagnoses())
    families = {code.split("-")[0] for code in codes if "-" in code}
    named = [(page.name, code) for page, text in PAGES.items() for code in CODE.findall(BLOCK.sub("", text))]
    assert [(page, code) for page, code in named if code.split("-")[0] in families and code not in codes] == []


def test_every_attack_is_on_the_page_about_security() -> None:
    """Each test that the page names exists, and the page names each test in tests/attacks.

    What protects agents from ranks of the same user is robustness, and not on the page.
    """
    page = PAGES[DOCS / "security.md"]
    files = set((ROOT / "tests" / "attacks").glob("test_*.py")) - {ROOT / "tests/attacks/test_left_processes.py"}
    attacks = "".join(path.read_text("utf-8") for path in files)
    assert set(re.findall(r"`(test_\w+)`", page)) == set(
        re.findall(r"^(?:async )?def (test_\w+)", attacks, re.MULTILINE)
    )
    assert [name for name in re.findall(r"`(tests/[\w/]+\.py)`", page) if not (ROOT / name).exists()] == []


def test_the_layout_page_lists_every_package() -> None:
    """It is what scripts/layout prints: each package, described by its docstring."""
    printed = subprocess.run([sys.executable, ROOT / "scripts" / "layout"], capture_output=True, text=True, check=True)
    assert PAGES[DOCS / "layout.md"] == printed.stdout
    assert "|  |" not in printed.stdout


def test_the_recovery_page_ends_with_the_classes_of_all_failures() -> None:
    """They are what scripts/recovery prints."""
    script = ROOT / "scripts" / "recovery"
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert PAGES[DOCS / "recovery.md"].endswith(printed.stdout)


def test_the_page_about_scripts_ends_with_all_kinds_of_events() -> None:
    """They are what scripts/events prints: each kind, described by its class."""
    printed = subprocess.run([sys.executable, ROOT / "scripts" / "events"], capture_output=True, text=True, check=True)
    assert PAGES[DOCS / "scripting.md"].endswith(printed.stdout)


def test_every_file_and_name_of_the_tour_exists() -> None:
    """A step of the tour names files below src/aboard, and functions, classes or methods that they define."""
    named = re.findall(r"`([\w/]+(?:\.py|/))(?:: ([\w.]+))?`", PAGES[DOCS / "tour.md"])
    missing = []
    for file, name in named:
        path = ROOT / "src" / "aboard" / file
        scope = ast.parse(path.read_text("utf-8")).body if path.is_file() and name else []
        for part in name.split(".") if name else ():
            found = [each for each in scope if part in _get_names(each)]
            scope = getattr(found[0], "body", []) if found else []
            missing += [] if found else [(file, name)]
        missing += [] if path.exists() else [(file, "")]
    assert missing == []
    assert len(named) > 40


def _get_names(node: ast.stmt) -> list[str]:
    targets = [*getattr(node, "targets", ()), getattr(node, "target", None)]
    return [getattr(node, "name", ""), *(each.id for each in targets if isinstance(each, ast.Name))]


def _assert_codes_have_pages(site: Path) -> None:
    assert "the files contain no rows" in (site / "codes" / "data-no-rows.html").read_text("utf-8")
    assert 'href="codes/data-no-rows.html"' in (site / "data.html").read_text("utf-8")


@pytest.mark.ci
def test_pages_build_without_a_warning_and_codes_are_links(tmp_path: Path) -> None:
    """In the plainest theme: the site's own parses the navigation again for each of hundreds of pages."""
    options = ("--quiet", "--fail-on-warning", "--fresh-env", "--define", "html_theme=basic")
    subprocess.run([sys.executable, "-m", "sphinx", *options, DOCS, tmp_path], check=True, timeout=300)
    _assert_codes_have_pages(tmp_path)


@pytest.mark.nightly
def test_the_site(tmp_path: Path) -> None:
    """It builds without a warning, codes and their old names have pages, and no page loads anything from elsewhere."""
    subprocess.run([sys.executable, ROOT / "scripts" / "docs", "--output", tmp_path], check=True, timeout=300)
    _assert_codes_have_pages(tmp_path)
    loaded = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//""")
    assert [page.name for page in tmp_path.rglob("*.html") if loaded.search(page.read_text("utf-8"))] == []
