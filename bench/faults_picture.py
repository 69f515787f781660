"""The large chart of the fault bench as SVG: seconds per fault for three tools."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

CAP = 60.0
COLOURS = {"aboard": "#1769aa", "torchrun": "#c9762b", "deepspeed": "#8a8f98"}
_LEFT, _WIDTH, _ROW, _BAR, _TOP = 330, 560, 22, 5, 74
_WHOLE = _LEFT + _WIDTH + 40
_FONT = 'font-family="sans-serif" font-size="12"'
_LEGEND = (
    "full colour: names the node (aboard: cause and node); faint: other output; full width: no output"
    f" within {CAP:.0f} s"
)
_TICKS = (0, 5, 10, 20, 30, 40, 50, 60)


def draw_picture(cases: Sequence[Mapping[str, Any]], peers: Mapping[str, Mapping[str, Any]]) -> str:
    """A row per fault; a bar is faint if the tool printed something but no node, or named the wrong cause.

    `peers` has each other tool's results by fault name.
    """
    height = _TOP + _ROW * len(cases) + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WHOLE} {height}" {_FONT}>',
        f'<rect width="{_WHOLE}" height="{height}" fill="#ffffff"/>',
        '<text x="12" y="22" font-size="16" fill="#222">Seconds from a fault to the first output about it</text>',
        f'<text x="12" y="40" fill="#555">{_LEGEND}</text>',
    ]
    for number, (tool, colour) in enumerate(COLOURS.items()):
        x = _LEFT + 110 * number
        lines.append(f'<rect x="{x}" y="50" width="12" height="8" fill="{colour}"/>')
        lines.append(f'<text x="{x + 18}" y="58" fill="#222">{tool}</text>')
    for tick in _TICKS:
        at = _scale_x(tick)
        lines.append(f'<line x1="{at:.1f}" y1="{_TOP - 6}" x2="{at:.1f}" y2="{height - 16}" stroke="#ddd"/>')
        lines.append(f'<text x="{at:.1f}" y="{height - 4}" fill="#777" text-anchor="middle">{tick}</text>')
    for row, case in enumerate(cases):
        others = {tool: told[case["name"]] for tool, told in peers.items() if case["name"] in told}
        lines += _draw_row(_TOP + _ROW * row, case, others)
    return "\n".join([*lines, "</svg>", ""])


def _draw_row(y: int, case: Mapping[str, Any], peers: Mapping[str, Any]) -> list[str]:
    name = escape(str(case["name"]))
    lines = [f'<text x="{_LEFT - 10}" y="{y + 12}" fill="#222" text-anchor="end">{name}</text>']
    results = {"aboard": {"seconds": case["seconds"], "named": case["right"]}, **peers}
    for number, (tool, colour) in enumerate(COLOURS.items()):
        if tool in results:
            seconds = results[tool]["seconds"]
            length = _scale_x(CAP if seconds is None else min(seconds, CAP)) - _LEFT
            faint = "1" if results[tool]["named"] else "0.35"
            lines.append(
                f'<rect x="{_LEFT}" y="{y + (_BAR + 1) * number}" width="{max(2.0, length):.1f}" height="{_BAR}"'
                f' fill="{colour}" fill-opacity="{faint}"/>'
            )
    return lines


def _scale_x(seconds: float) -> float:
    return _LEFT + _WIDTH * seconds / CAP
