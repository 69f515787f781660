"""Renders the page: one HTML file with its style, its scripts and its data, which loads nothing else."""

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

_STYLES = ("vendor/uPlot.min.css", "report.css")
_SCRIPTS = (
    "vendor/uPlot.iife.min.js",
    "format.js",
    "charts.js",
    "heat_map.js",
    "tables.js",
    "compare.js",
    "check.js",
    "report.js",
)
# In a script element, these could end it, or begin a comment that hides its end; in JSON they can be escaped.
_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def render_page(data: Mapping[str, Any], title: str) -> str:
    """The page of this data; its policy allows these scripts and styles only, by their hashes."""
    styles, scripts = ([_read_source(name) for name in names] for names in (_STYLES, _SCRIPTS))
    script = "\n".join(scripts)
    style = "\n".join(styles)
    policy = (
        f"default-src 'none'; script-src '{_hash_source(script)}'; style-src '{_hash_source(style)}';"
        " base-uri 'none'; form-action 'none'"
    )
    parts = {
        "title": escape(title),
        "policy": escape(policy, quote=True),
        "style": style,
        "script": script,
        "data": encode_data(data),
    }
    # One pass, so that nothing in one part is taken for the place of another.
    before, *rest = _read_source("page.html").split("{{")
    return before + "".join(parts[name] + text for name, _, text in (each.partition("}}") for each in rest))


def encode_data(data: Mapping[str, Any]) -> str:
    """JSON that is safe inside of a script element, whatever texts are in it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES).encode("utf-8", "backslashreplace").decode()


def _hash_source(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _read_source(name: str) -> str:
    return (files("aboard.commands.shared.page") / "sources" / name).read_text("utf-8")
