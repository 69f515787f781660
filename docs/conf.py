"""Sphinx configuration: the pages of docs/ and, from src/aboard/diagnoses/, one page for each code."""

import shutil
import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

# Codes of this checkout, whatever is installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from aboard.commands.why.diagnosis_pages import build_pages
from aboard.commands.why.diagnosis_view import ALL_SUBJECTS

project = "Aboard"
html_title = "Aboard"
extensions = ["myst_parser"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
# Quotes and dashes stay as they are typed.
smartquotes = False
myst_heading_anchors = 3
nitpicky = True
PAGES = build_pages(ALL_SUBJECTS)


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_code_pages)
    app.connect("source-read", nest_decisions)
    app.connect("doctree-resolved", link_codes)


def write_code_pages(app: Sphinx) -> None:
    folder = Path(app.srcdir, "codes")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, text in PAGES.items():
        (folder / name).write_text(text, "utf-8")


def nest_decisions(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Puts the decisions below their list in the navigation; a repository view would show a directive in the file."""
    if docname == "decisions/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n0*\n```\n"


def link_codes(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Links each inline literal that is a code to the code's page; a single word such as `config` may mean anything."""
    for literal in list(doctree.findall(nodes.literal)):
        code = literal.astext()
        page = f"codes/{code}"
        known = "-" in code and f"{code}.md" in PAGES
        if known and page != docname and not isinstance(literal.parent, nodes.reference):
            uri = app.builder.get_relative_uri(docname, page)
            literal.replace_self(nodes.reference("", "", literal.deepcopy(), refuri=uri, internal=True))
