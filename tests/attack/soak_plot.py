"""The picture of a soak: plain SVG, made of nothing but strings."""

import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 150, 60, 14, 30, 24
# Title, key of a sample, what one unit of the axis is.
PANELS = (
    ("Resident memory, MiB (dots: at rests)", "memory", 1 << 20),
    ("Open files", "files", 1),
    ("Threads", "threads", 1),
    ("KV pages in use", "pages", 1),
)


def step(top):
    """A round distance between lines of the grid: about four of them up to `top`."""
    size = 10 ** math.floor(math.log10(top / 4))
    return next(size * f for f in (1, 2, 5, 10) if top / (size * f) <= 5)


def panel(title, key, unit, samples, rests):
    end = max(s["seconds"] for s in samples + rests)
    top = max(max(s[key] for s in samples + rests) / unit * 1.1, 1)

    def at(s):
        x = LEFT + s["seconds"] / end * (WIDTH - LEFT - RIGHT)
        return x, HEIGHT - BOTTOM - s[key] / unit / top * (HEIGHT - TOP - BOTTOM)

    out = [f'<text x="{LEFT}" y="18" class="title">{title}</text>']
    grid = step(top)
    for i in range(int(top / grid) + 1):
        y = HEIGHT - BOTTOM - i * grid / top * (HEIGHT - TOP - BOTTOM)
        out.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
        )
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{i * grid:g}</text>')
    minutes = max(1, round(end / 60 / 6))
    for minute in range(0, int(end / 60) + 1, minutes):
        x = LEFT + minute * 60 / end * (WIDTH - LEFT - RIGHT)
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{minute} min</text>')
    path = " ".join("{:.0f},{:.1f}".format(*at(s)) for s in samples)
    out.append(f'<polyline points="{path}" fill="none" stroke="#1f6fb2"/>')
    dots = "".join("M{:.0f},{:.1f}h0".format(*at(s)) for s in rests)
    out.append(f'<path d="{dots}" class="dots"/>')
    return out


def draw(result):
    """The SVG of what soak.py writes as JSON."""
    height = HEIGHT * len(PANELS)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}">',
        "<style>text{font:11px sans-serif;fill:#333}.title{font-weight:bold}"
        ".grid{stroke:#ddd}.dots{stroke:#c2571a;stroke-width:5;stroke-linecap:round}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for i, (title, key, unit) in enumerate(PANELS):
        lines = panel(title, key, unit, result["samples"], result["rests"])
        out += [f'<g transform="translate(0,{i * HEIGHT})">', *lines, "</g>"]
    return "\n".join([*out, "</svg>", ""])
