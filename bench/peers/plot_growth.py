"""Draws measurements of bench_step: time of a step by context, sequences and rows.

    build/release/bin/bench_step --csv growth.csv
    python -m bench.peers.plot_growth growth.csv docs/reports/growth.svg

Writes SVG: one panel per table, one line per model.
"""

import argparse
import csv
import math
from collections import defaultdict
from pathlib import Path
from xml.sax.saxutils import escape

# Table, title, name of the x axis, and function of the points.
PANELS = [
    ("context", "Time of a token, relative to a short context", "tokens of context", "relative"),
    ("rows", "A pass of several rows, relative to one", "rows", "relative"),
    ("sequences", "Tokens per second, relative to one sequence", "sequences", "rate"),
]
COLOURS = ["#1f6fb2", "#c2571a", "#3a8f4d", "#8452a1"]
WIDTH, HEIGHT = 420, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 34, 44


def read(path: Path) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Points (x, milliseconds) by table and model."""
    tables = defaultdict(lambda: defaultdict(list))
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["table"] not in {panel[0] for panel in PANELS}:
                continue
            point = (float(row["x"]), float(row["milliseconds"]))
            tables[row["table"]][row["model"]].append(point)
    return tables


def values(points: list[tuple[float, float]], kind: str) -> list[tuple[float, float]]:
    """Values to draw: times or tokens per second, relative to the first point."""
    points = sorted(points)
    first_x, first = points[0]
    if kind == "rate":
        return [(x, (x / ms) / (first_x / first)) for x, ms in points]
    return [(x, ms / first) for x, ms in points]


def step(top: float) -> float:
    """A round distance for about five grid lines up to `top`."""
    size = 10 ** math.floor(math.log10(top / 5))
    return next(size * f for f in (1, 2, 5, 10) if top / (size * f) <= 6)


def panel(title: str, axis: str, lines: dict[str, list[tuple[float, float]]]) -> list[str]:
    xs = sorted({x for line in lines.values() for x, _ in line})
    top = max(y for line in lines.values() for _, y in line) * 1.05
    low, high = math.log2(xs[0]), math.log2(xs[-1])

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log2(x) - low) / ((high - low) or 1)
        return (
            LEFT + across * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM),
        )

    out = [f'<text x="{LEFT}" y="20" class="title">{escape(title)}</text>']
    grid = step(top)
    for i in range(int(top / grid) + 1):
        _, y = at(xs[0], i * grid)
        out.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
        )
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{i * grid:g}</text>')
    for x in xs:
        across, _ = at(x, 0)
        out.append(
            f'<text x="{across:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(axis)}</text>')
    for i, (model, line) in enumerate(lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        places = [at(x, y) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        y = TOP + 12 + 16 * i
        out.append(f'<text x="{LEFT + 10}" y="{y}" style="fill:{colour}">{escape(model)}</text>')
    return out


def draw(tables: dict[str, dict[str, list[tuple[float, float]]]]) -> str:
    shown = [p for p in PANELS if tables.get(p[0])]
    if not shown:
        raise ValueError(f"none of the tables {[p[0] for p in PANELS]} is in the file")
    width = WIDTH * len(shown)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" '
        f'viewBox="0 0 {width} {HEIGHT}">',
        "<style>text{font:11px sans-serif;fill:#333}.title{font-weight:bold}"
        ".grid{stroke:#ddd}</style>",
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
    ]
    for i, (table, title, axis, kind) in enumerate(shown):
        lines = {model: values(points, kind) for model, points in tables[table].items()}
        out += [f'<g transform="translate({i * WIDTH},0)">', *panel(title, axis, lines), "</g>"]
    return "\n".join([*out, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("csv", type=Path, help="output of bench_step --csv")
    parser.add_argument("svg", type=Path, help="output")
    arguments = parser.parse_args()
    arguments.svg.write_text(draw(read(arguments.csv)))


if __name__ == "__main__":
    main()
