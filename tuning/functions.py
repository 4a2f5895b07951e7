"""Functions of the standard library as pairs of texts: what an encoder reads and a decoder writes.

Two tasks, named in the source as T5 names its own (arXiv 1910.10683, section 2.4):
`name: ` and a function whose name is hidden, to its name; `docstring: ` and a function without its
docstring, to that docstring's first line.
"""

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from tuning.corpus import Document, is_held_out

NAME, DOCSTRING = "name", "docstring"
HIDDEN = "_"  # in the place of a hidden name
SHORTEST_DOCSTRING = 10  # characters


@dataclass(frozen=True)
class Example:
    """One pair of texts; `task` is what `source` begins with."""

    task: str
    source: str
    target: str


def source(task: str, function: str, name: str) -> str:
    """What the encoder reads of a function's source, its docstring already removed."""
    if task == NAME:
        function = re.sub(rf"\b{re.escape(name)}\b", HIDDEN, function)
    return f"{task}: {function}"


def first_line(docstring: str) -> str | None:
    """A docstring's first line, None where that says nothing."""
    line = docstring.strip().partition("\n")[0].strip()
    return line if len(line) >= SHORTEST_DOCSTRING and any(c.isalpha() for c in line) else None


def functions(text: str) -> Iterator[tuple[str, str, str | None]]:
    """(source without decorators and docstring, name, docstring) of every function of a file.

    Functions of one line, and those that share a line with their docstring, are left out; nothing
    comes of a file that this Python cannot parse.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's tests hold dubious escapes on purpose
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return
    lines = text.split("\n")
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first, last = node.lineno - 1, node.end_lineno
        body = node.body[0]
        docstring = ast.get_docstring(node)
        if body.lineno == node.lineno or (docstring is not None and len(node.body) == 1):
            continue
        kept = lines[first:last]
        if docstring is not None:
            if node.body[1].lineno <= body.end_lineno:
                continue
            kept = lines[first : body.lineno - 1] + lines[body.end_lineno : last]
        yield textwrap.dedent("\n".join(kept)), node.name, docstring


def examples(documents: list[Document]) -> list[Example]:
    """All examples of the documents in their order, each source once."""
    found: dict[str, Example] = {}
    for document in documents:
        for function, name, docstring in functions(document.text):
            line = first_line(docstring) if docstring is not None else None
            targets = {NAME: name, DOCSTRING: line}
            for task, target in targets.items():
                if target is not None:
                    example = Example(task, source(task, function, name), target)
                    found.setdefault(example.source, example)
    return list(found.values())


def split(documents: list[Document], share: float) -> tuple[list[Example], list[Example]]:
    """(training, held-out) examples: `share` of all files, fixed by their paths, are held out.

    Held-out sources that are among the training's are left out.
    """
    training = examples([d for d in documents if not is_held_out(d.path, share)])
    known = {example.source for example in training}
    held_out = examples([d for d in documents if is_held_out(d.path, share)])
    return training, [example for example in held_out if example.source not in known]
