"""The small chart of the fault bench as SVG: share of faults whose node is named, over time."""

from collections.abc import Mapping, Sequence
from typing import Any

from faults_picture import CAP, COLOURS

_LEFT, _TOP, _WIDTH, _HEIGHT = 56, 58, 640, 260
_RIGHT, _BOTTOM, _LINE = 130, 40, 15
_FONT = 'font-family="sans-serif" font-size="12"'
_TITLE = "Faults whose node is named, by seconds since the first effect"


def draw_curve(kept: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """A line per tool, over the faults that all tools were given and that did harm."""
    tools = [tool for tool in COLOURS if tool != "aboard" and kept.get(tool)]
    shared = [name for name in kept["cases"] if all(_is_harmed(kept[tool].get(name)) for tool in tools)]
    told = {"aboard": [_get_correct_seconds(kept["cases"][name]) for name in shared]}
    told |= {tool: [_get_named_seconds(kept[tool][name]) for name in shared] for tool in tools}
    whole, height = _LEFT + _WIDTH + _RIGHT, _TOP + _HEIGHT + _BOTTOM
    under = f"{len(shared)} faults injected into the same training on 4 hosts; aboard must name the cause, too"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {height}" {_FONT}>',
        f'<rect width="{whole}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-size="16" fill="#222">{_TITLE}</text>',
        f'<text x="12" y="40" fill="#555">{under}</text>',
    ]
    for percent in (0, 25, 50, 75, 100):
        y = _scale_y(percent / 100)
        lines.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + _WIDTH}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" fill="#777" text-anchor="end">{percent} %</text>')
    for tick in range(0, int(CAP) + 1, 10):
        x, y = _scale_x(tick), _TOP + _HEIGHT + 18
        lines.append(f'<text x="{x:.1f}" y="{y}" fill="#777" text-anchor="middle">{tick} s</text>')
    lowest = float(_TOP)
    for tool, seconds in sorted(told.items(), key=lambda each: -_compute_share(each[1])):
        # If two lines end at the same height, their labels are stacked.
        lowest = max(lowest + _LINE, _scale_y(_compute_share(seconds)) + 4)
        lines += _draw_line(tool, seconds, lowest)
    return "\n".join([*lines, "</svg>", ""])


def _draw_line(tool: str, seconds: Sequence[float | None], label: float) -> list[str]:
    named = sorted(min(at, CAP) for at in seconds if at is not None)
    path = [f"M{_scale_x(0):.1f},{_scale_y(0):.1f}"]
    path += [f"H{_scale_x(at):.1f}V{_scale_y(count / len(seconds)):.1f}" for count, at in enumerate(named, 1)]
    path.append(f"H{_scale_x(CAP):.1f}")
    colour = COLOURS[tool]
    words = f"{tool}, {100 * _compute_share(seconds):.0f} %"
    return [
        f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="2.5"/>',
        f'<text x="{_LEFT + _WIDTH + 8}" y="{label:.1f}" fill="{colour}">{words}</text>',
    ]


def _compute_share(seconds: Sequence[float | None]) -> float:
    return sum(at is not None for at in seconds) / max(1, len(seconds))


def _is_harmed(told: Mapping[str, Any] | None) -> bool:
    return told is not None and not told["unharmed"]


def _get_correct_seconds(case: Mapping[str, Any]) -> float | None:
    return float(case["seconds"]) if case["right"] else None


def _get_named_seconds(told: Mapping[str, Any]) -> float | None:
    return float(told["named_seconds"]) if told["named"] else None


def _scale_x(seconds: float) -> float:
    return _LEFT + _WIDTH * seconds / CAP


def _scale_y(share: float) -> float:
    return _TOP + _HEIGHT * (1 - share)
