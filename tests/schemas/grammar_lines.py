"""Runs the program grammar_lines, and spells JSON values as texts."""

import concurrent.futures
import itertools
import json
import math
import os
import pathlib
import subprocess

HOME = pathlib.Path(os.environ.get("TANDEM_HOME", pathlib.Path.home() / ".cache/tandem"))
PROGRAM = pathlib.Path(os.environ.get("TANDEM_BIN", "build/test/bin")) / "grammar_lines"
MOST_SPELLINGS = 720


class Number(float):
    """A number with the text that it had."""

    def __new__(cls, text):
        self = super().__new__(cls, text)
        self.text = text
        return self


def read_json(text):
    return json.loads(text, parse_float=Number)


def _run_one(lines, tokenizer):
    command = [PROGRAM, *([tokenizer] if tokenizer else [])]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run(command, input=text.encode(), capture_output=True)
    answers = [json.loads(line) for line in done.stdout.split(b"\n") if line]
    if done.returncode != 0 or len(answers) != len(lines):
        problem = done.stderr.decode(errors="replace")[-1000:]
        raise RuntimeError(f"after {len(answers)} of {len(lines)} lines: {problem}")
    return answers


def run(lines, tokenizer="", jobs=1):
    """The answers of the program, one for each line, in the same order."""
    lines = list(lines)
    answers = [None] * len(lines)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        parts = pool.map(_run_one, [lines[i::jobs] for i in range(jobs)], [tokenizer] * jobs)
        for i, part in enumerate(parts):
            answers[i::jobs] = part
    return answers


def _orders(value, rank):
    """Objects of `value` with their members in every order, or in that of `rank` if they are many."""
    if isinstance(value, list):
        parts = [_orders(member, rank) for member in value]
        if math.prod(len(part) for part in parts) > MOST_SPELLINGS:
            parts = [part[:1] for part in parts]
        return [list(members) for members in itertools.product(*parts)]
    if isinstance(value, dict):
        known = sorted(value, key=lambda name: rank.get(name, len(rank)))
        few = math.factorial(len(value)) <= MOST_SPELLINGS
        names = itertools.permutations(known) if few else [known, list(value)]
        parts = {name: _orders(member, rank) for name, member in value.items()}
        if math.prod(len(part) for part in parts.values()) > 1:
            parts = {name: part[:2] for name, part in parts.items()}
        out = []
        for order in names:
            for members in itertools.product(*(parts[name] for name in order)):
                out.append(dict(zip(order, members, strict=True)))
                if len(out) >= MOST_SPELLINGS:
                    return out
        return out
    return [value]


def _text(value, whole):
    if isinstance(value, Number):
        return str(int(value)) if whole and value.is_integer() else value.text
    if isinstance(value, list):
        return "[" + ", ".join(_text(member, whole) for member in value) + "]"
    if isinstance(value, dict):
        members = (f"{_string(name)}: {_text(member, whole)}" for name, member in value.items())
        return "{" + ", ".join(members) + "}"
    return _string(value) if isinstance(value, str) else json.dumps(value)


def _string(text):
    try:
        text.encode()
    except UnicodeEncodeError:  # a half of a surrogate pair
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False)


def dumps(value):
    """JSON with numbers as they were read."""
    return _text(value, False)


def _names(schema, rank):
    if isinstance(schema, dict):
        for key in ("properties", "required"):
            for name in schema.get(key) or [] if isinstance(schema.get(key), dict | list) else []:
                if isinstance(name, str):
                    rank.setdefault(name, len(rank))
        schema = list(schema.values())
    for member in schema if isinstance(schema, list) else []:
        _names(member, rank)


def spellings(value, schema):
    """Texts of a JSON value: members in several orders, and whole numbers with and without a point."""
    rank = {}
    _names(schema, rank)
    texts = {}
    for ordered in _orders(value, rank):
        texts[_text(ordered, True)] = None
        texts[_text(ordered, False)] = None
    return list(texts)
