#!/usr/bin/env python3
"""Checks the language of README and docs, and of comments in C++ and Python: sentence lengths and words to avoid.

  scripts/check_prose.py [--measure] [ROOT]

Exit status 1, with one line per finding, when a page breaks a rule; --measure prints the figures of
every page instead. Code blocks, tables, links' targets and generated pages are not prose.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tokenize
from pathlib import Path

MEDIAN_WORDS, P90_WORDS, LONGEST = 16, 28, 40  # of a sentence
TOTAL_WORDS = 26_000  # of all pages
USER_PAGE_WORDS = 1_500
COMMENT_HITS = 5  # avoided words in all comments
GENERATED = {"docs/configuration.md", "docs/http_fields.md"}

# What to avoid -> what to write instead.
AVOIDED = {
    r"nobody": "no client, no thread, ...: name the thing",
    r"whoever": "any client that ...",
    r"told|tells|telling": "conditioned; reports; states",
    r"lore": "statistics",
    r"company": "batch",
    r"house": "project, code base",
    r"rooms?": "module; memory, capacity",
    r"doors?": "HTTP API",
    r"foresees?|foreseen|foretold": "predict",
    r"babbl\w+": "undertrained",
    r"lets? in": "admit",
    r"stands? still": "is paused",
    r"stands? (?:by|beside)": "is next to",
    r"goes on|go on": "continues",
    r"comes? back": "returns, resumes",
    r"as it is|as they are": "unchanged",
    r"none is": "name the thing",
    r"of which": "split the sentence",
    r"so many|so much": "a number, or 'that many'",
    r"by itself|by themselves": "automatically, separately",
    r"what is|what was|what are": "name the thing",
    r"is said|are said": "is reported",
    r"beside": "next to, with",
    r"apart": "separate; distinct tokenizer",
}
# Comments are searched for these alone; the rest has uses there.
IN_COMMENTS = ["nobody", "whoever", "told", "lore", "company", "house", r"doors?", r"babbl\w+"]
IN_COMMENTS += [r"lets? in", r"stands? still", r"foresees?|foreseen|foretold"]

SLASHES = {".h", ".cpp", ".cu", ".cuh", ".proto", ".rs", ".go", ".java", ".js", ".ts"}

FENCE = re.compile(r"^ {0,3}(```+|~~~+).*?^ {0,3}\1\s*$", re.S | re.M)
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|vs|cf|No|Fig|etc|et al)\.")


def pages(root):
    found = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    found += [root / "deploy/README.md", root / "models/README.md"]
    names = [path.relative_to(root).as_posix() for path in found if path.exists()]
    return [name for name in names if name not in GENERATED]


def paragraphs(text):
    """The prose of a page, a paragraph or list item each."""
    text = re.sub(r"<!--.*?-->", "", FENCE.sub("\n\n", text), flags=re.S)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    block = []
    for line in [*text.split("\n"), ""]:
        line = line.strip()
        starts = re.match(r"([-*+]|\d+\.)\s+", line)
        if not line or line.startswith(("|", "#", "---", "===")) or starts:
            if block:
                yield " ".join(block)
            block = []
            line = line[starts.end() :] if starts else ""
        if line and not line.startswith("|"):
            block.append(line.lstrip("> "))


def sentences(text):
    for paragraph in paragraphs(text):
        # Code is one word; a point within it ends no sentence.
        plain = re.sub(r"`[^`]*`", "Code", paragraph)
        plain = ABBREVIATION.sub(lambda m: m.group(0)[:-1], plain)
        for sentence in re.split(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_]*[A-Z0-9])", plain):
            words = re.findall(r"[A-Za-z0-9][\w'’./×%-]*", sentence)
            if words:
                yield sentence, len(words)


def hits(text, words):
    """(word, sentence) of every avoided word."""
    for sentence, _ in sentences(text):
        for pattern in words:
            for found in re.finditer(rf"\b(?:{pattern})\b", sentence, re.I):
                yield pattern, found.group(0), sentence


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0


def has_comments(path):
    """Source and build files, and scripts of the shell and Python without a suffix."""
    if path.suffix in {*SLASHES, ".py", ".cmake", ".yaml", ".yml", ".textproto"}:
        return path.is_file()
    if path.name == "CMakeLists.txt":
        return True
    return not path.suffix and path.is_file() and path.read_bytes()[:3] == b"#!/"


def comments_of(path):
    """(line number, text) of the comments of a file, and of the docstrings of a Python file."""
    if path.suffix != ".py":
        mark = "//" if path.suffix in SLASHES else "#"
        for number, line in enumerate(path.read_text("utf-8").split("\n"), 1):
            yield number, line.partition(mark)[2]
        return
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            docstring = token.type == tokenize.STRING and token.line.lstrip().startswith('"""')
            if token.type == tokenize.COMMENT or docstring:
                yield token.start[0], token.string


def comment_hits(root):
    files = subprocess.run(
        ["git", "-C", root, "ls-files"], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    pattern = re.compile(rf"\b(?:{'|'.join(IN_COMMENTS)})\b", re.I)
    for name in files:
        if not name or not has_comments(root / name):
            continue
        for number, comment in comments_of(root / name):
            for found in pattern.finditer(re.sub(r"`[^`]*`", "", comment)):
                yield f"{name}:{number}: {found.group(0)!r} in a comment"


def check(root):
    """Findings, a line each."""
    found, lengths = [], []
    for name in pages(root):
        text = (root / name).read_text("utf-8")
        page = [count for _, count in sentences(text)]
        lengths += page
        for sentence, count in sentences(text):
            if count > LONGEST:
                found.append(f"{name}: {count} words in a sentence; allowed: {LONGEST}: {sentence}")
        for pattern, word, sentence in hits(text, AVOIDED):
            found.append(f"{name}: {word!r}; write: {AVOIDED[pattern]}: {sentence}")
        is_user_page = name.startswith("docs/") and "reports/" not in name
        if is_user_page and name != "docs/architecture.md" and sum(page) > USER_PAGE_WORDS:
            found.append(f"{name}: {sum(page)} words; allowed: {USER_PAGE_WORDS}")
    for what, value, allowed in [
        ("words of all pages", sum(lengths), TOTAL_WORDS),
        ("median sentence", statistics.median(lengths) if lengths else 0, MEDIAN_WORDS),
        ("90th percentile of sentences", percentile(lengths, 0.9), P90_WORDS),
    ]:
        if value > allowed:
            found.append(f"{what}: {value}; allowed: {allowed}")
    comments = list(comment_hits(root))
    if len(comments) > COMMENT_HITS:
        found += comments
        found.append(f"avoided words in comments: {len(comments)}; allowed: {COMMENT_HITS}")
    return found


def measure(root):
    print(f"{'page':44} {'words':>6} {'median':>6} {'p90':>4} {'max':>4} {'avoided':>7}")
    every, all_hits = [], 0
    for name in pages(root):
        text = (root / name).read_text("utf-8")
        counts = [count for _, count in sentences(text)] or [0]
        bad = sum(1 for _ in hits(text, AVOIDED))
        every += counts
        all_hits += bad
        middle, p90 = statistics.median(counts), percentile(counts, 0.9)
        print(f"{name:44} {sum(counts):6} {middle:6.0f} {p90:4} {max(counts):4} {bad:7}")
    middle, p90 = statistics.median(every), percentile(every, 0.9)
    print(f"{'all':44} {sum(every):6} {middle:6.0f} {p90:4} {max(every):4} {all_hits:7}")
    print(f"avoided words in comments: {sum(1 for _ in comment_hits(root))}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--measure", action="store_true", help="print figures, check nothing")
    parser.add_argument("root", nargs="?", default=Path(__file__).resolve().parents[1], type=Path)
    arguments = parser.parse_args()
    if arguments.measure:
        return measure(arguments.root)
    found = check(arguments.root)
    print("\n".join(found) if found else "README, docs and comments are plain English")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
