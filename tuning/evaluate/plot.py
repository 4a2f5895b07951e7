"""A small scatter plot with lines, as SVG, without dependencies."""

import math
from dataclasses import dataclass, field
from html import escape

COLOURS = ["#1f6f8b", "#d1603d", "#5b8c3a", "#8a4f9e", "#c2a11f", "#555555"]
WIDTH, HEIGHT = 420, 330
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 30, 44
INK, GRID = "#222222", "#e3e3e3"


@dataclass
class Series:
    """Points (x, y, tooltip), drawn in order, optionally joined by a line."""

    name: str
    points: list[tuple[float, float, str]]
    colour: str
    line: bool = True
    dashed: bool = False
    marker: str = "circle"  # or "square", "diamond"


@dataclass
class Panel:
    title: str
    series: list[Series] = field(default_factory=list)


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers from `low` to `high`."""
    step = 10 ** math.floor(math.log10((high - low) / about))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (m * step) <= about)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def bounds(values: list[float]) -> tuple[float, float]:
    """The values' range with a little air; of a single value, air alone."""
    low, high = min(values), max(values)
    air = 0.06 * (high - low) or 0.5
    return low - air, high + air


def marker(kind: str, x: float, y: float, colour: str, conditioned: str) -> str:
    shape = {
        "circle": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"',
        "square": f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"',
        "diamond": f'<path d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z"',
    }[kind]
    return f'{shape} fill="{colour}"><title>{escape(conditioned)}</title></{shape[1:].split()[0]}>'


def draw(panels: list[Panel], x_label: str, y_label: str) -> str:
    """The panels side by side, with the same axes; a legend under each."""
    points = [p for panel in panels for series in panel.series for p in series.points]
    x_low, x_high = bounds([p[0] for p in points])
    y_low, y_high = bounds([p[1] for p in points])
    legend = 16 * max(math.ceil(len(panel.series) / 2) for panel in panels) + 8
    whole, tall = WIDTH * len(panels), HEIGHT + legend
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {tall}" width="{whole}" '
        f'height="{tall}" font-family="Helvetica, Arial, sans-serif" font-size="11">',
        f'<rect width="{whole}" height="{tall}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        left, right = WIDTH * number + LEFT, WIDTH * (number + 1) - RIGHT
        bottom = HEIGHT - BOTTOM

        def x(value, left=left, right=right):
            return left + (value - x_low) / (x_high - x_low) * (right - left)

        def y(value, bottom=bottom):
            return bottom - (value - y_low) / (y_high - y_low) * (bottom - TOP)

        def text(at_x, at_y, content, anchor="middle", more=""):
            out.append(
                f'<text x="{at_x:.1f}" y="{at_y:.1f}" text-anchor="{anchor}" fill="{INK}"{more}>'
                f"{escape(content)}</text>"
            )

        def rule(x1, y1, x2, y2, colour):
            out.append(
                f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'
            )

        for value in ticks(x_low, x_high):
            rule(x(value), TOP, x(value), bottom, GRID)
            text(x(value), bottom + 15, f"{value:g}")
        for value in ticks(y_low, y_high):
            rule(left, y(value), right, y(value), GRID)
            text(left - 6, y(value) + 4, f"{value:g}", "end")
        rule(left, bottom, right, bottom, INK)
        rule(left, TOP, left, bottom, INK)
        middle = (TOP + bottom) / 2
        text((left + right) / 2, TOP - 12, panel.title, more=' font-size="13" font-weight="bold"')
        text((left + right) / 2, bottom + 34, x_label)
        if number == 0:
            turned = f' transform="rotate(-90 14 {middle:.1f})"'
            text(14, middle, y_label, more=turned)
        for place, series in enumerate(panel.series):
            if series.line:
                path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b, _ in series.points)
                dashes = ' stroke-dasharray="5 3"' if series.dashed else ""
                out.append(
                    f'<polyline points="{path}" fill="none" stroke="{series.colour}" '
                    f'stroke-width="1.5"{dashes}/>'
                )
            for a, b, conditioned in series.points:
                out.append(marker(series.marker, x(a), y(b), series.colour, conditioned))
            at_x = left + (place % 2) * (right - left) / 2
            at_y = HEIGHT + 4 + 16 * (place // 2)
            out.append(marker(series.marker, at_x + 5, at_y, series.colour, series.name))
            text(at_x + 14, at_y + 4, series.name, "start")
    return "\n".join([*out, "</svg>", ""])
