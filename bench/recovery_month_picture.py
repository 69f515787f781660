"""The chart of the simulated month as SVG: goodput by the interval between saves, and where `auto` comes out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log10

_LEFT, _TOP, _WIDTH, _HEIGHT = 60, 66, 640, 320
_KEY = 26
_COLOURS = ("#1769aa", "#1769aa", "#c9762b", "#c9762b")
_DASHES = ("", "6 4", "", "6 4")
_TICKS = {5: "5 s", 15: "15 s", 60: "1 min", 300: "5 min", 900: "15 min", 3600: "1 h", 7200: "2 h"}
_TITLE = "Goodput of 30 simulated days on 1,000 nodes, by the time between two saves"
_LEGEND = "lines: constant intervals; rings: save_steps: auto, at its median interval"
_FONT = 'font-family="sans-serif" font-size="12"'


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Goodput by seconds between saves, and the median interval of `auto` with its goodput."""

    name: str
    points: Mapping[float, float]
    auto: tuple[float, float]


def draw_picture(curves: Sequence[Curve]) -> str:
    """A line for each curve with a ring where `auto` is; goodput from the lowest tenth upwards."""
    least = int(10 * min(value for curve in curves for value in (*curve.points.values(), curve.auto[1]))) / 10
    height = _TOP + _HEIGHT + 50 + _KEY * len(curves)

    def place(seconds: float, goodput: float) -> tuple[float, float]:
        first, last = log10(min(_TICKS)), log10(max(_TICKS))
        across = (log10(seconds) - first) / (last - first)
        return _LEFT + _WIDTH * across, _TOP + _HEIGHT * (1 - goodput) / (1 - least)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 30} {height}" {_FONT}>',
        f'<rect width="{_LEFT + _WIDTH + 30}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-size="16" fill="#222">{_TITLE}</text>',
        f'<text x="12" y="42" fill="#555">{_LEGEND}</text>',
    ]
    for seconds, words in _TICKS.items():
        x, _ = place(seconds, 1.0)
        lines.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_TOP + _HEIGHT}" stroke="#ddd"/>')
        lines.append(f'<text x="{x:.1f}" y="{_TOP + _HEIGHT + 18}" fill="#777" text-anchor="middle">{words}</text>')
    for tenth in range(round(10 * least), 11):
        _, y = place(60, tenth / 10)
        lines.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + _WIDTH}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" fill="#777" text-anchor="end">{tenth / 10:.1f}</text>')
    for number, (curve, colour, dash) in enumerate(zip(curves, _COLOURS, _DASHES, strict=True)):
        path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in sorted(curve.points.items()))
        stroke = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        lines.append(f'<polyline points="{path}" {stroke}/>')
        x, y = place(*curve.auto)
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="#ffffff" stroke="{colour}" stroke-width="3"/>')
        y = _TOP + _HEIGHT + 48 + _KEY * number
        lines.append(f'<line x1="{_LEFT}" y1="{y}" x2="{_LEFT + 40}" y2="{y}" {stroke}/>')
        lines.append(f'<text x="{_LEFT + 52}" y="{y + 4}" fill="#222">{escape(curve.name)}</text>')
    return "\n".join([*lines, "</svg>", ""])
