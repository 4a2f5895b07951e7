"""Tables of the report pages, and the markers between which scripts write them."""

import statistics
from pathlib import Path


def spread(figures: list[float], digits: int = 1) -> str:
    """Median, smallest and largest."""
    middle, least, most = statistics.median(figures), min(figures), max(figures)
    return f"{middle:.{digits}f} ({least:.{digits}f}-{most:.{digits}f})"


def put(page: Path, name: str, text: str) -> None:
    """Replaces the text between the page's markers of that name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = page.read_text().split(begin)
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{rest.split(end)[1]}")


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def folded(summary: str, text: str) -> str:
    """A part of a page that opens on a click."""
    return f"<details>\n<summary>{summary}</summary>\n\n{text}\n\n</details>"
