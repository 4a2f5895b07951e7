"""Edits of source files through the server: speed and tokens per pass of drafts by look-up.

    scripts/evaluate --editing [N] [--new-tokens 700] [--ways look-ups,auto]

The model rewrites files of Python's standard library with one change each. In the second round it
gets its own answer, with another change, as an agent does. All ways must give equal texts. The files
are tests, scripts, classes and functions in turn, so four have one of each kind. Speed-ups are
medians over the files, each against autoregressive decoding of the same file. Tokens per pass need no
quiet machine, tokens per second do. The coder pair is fetched by scripts/models.
"""

import ast
import itertools
import random
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from measure import report
from measure.serving import Client
from tuning import corpus
from tuning.evaluate.humaneval import LARGE, MASKS, SMALL, Way

SHORTEST, LONGEST = 60, 120  # lines of a file
MOST_CHARACTERS = 3600  # of a file: less than 1,200 tokens
ROUNDS = ("first edit", "second edit")

# `before` is what look-ups were without a history and with grams of at most 4 tokens.
CONFIG = """
models {{ name: "large" path: "{large}" }}
models {{ name: "small" path: "{small}" extras {{ name: "masks" path: "{masks}" }} }}
deployments {{ name: "before" large: "large" history_tokens: 0 }}
deployments {{ name: "look-ups" large: "large" }}
deployments {{ name: "pair" large: "large" small: "small" speculative {{ adapter: "masks" }} }}
"""
ALONE = """
models {{ name: "large" path: "{large}" }}
deployments {{ name: "before" large: "large" history_tokens: 0 }}
deployments {{ name: "look-ups" large: "large" }}
"""
FASTEST = {"pace": "PACE_FASTEST"}
PLAIN = Way("autoregressive", "Autoregressive", "before", promises_exact=True)
WAYS = (
    PLAIN,
    Way("n-grams of 4 tokens", "Ngram", "before", {"draft_tokens": 8, "max_ngram": 4} | FASTEST),
    Way("look-ups", "Ngram", "look-ups", {"draft_tokens": 64, "max_ngram": 64} | FASTEST),
    Way("auto, with the small model", "Auto", "pair"),
)


@dataclass(frozen=True)
class Task:
    """A file and two changes of it."""

    path: str
    kind: str
    text: str
    changes: tuple[str, str]


KINDS = ("tests", "script", "classes", "functions")


def kind_of(path: str, text: str) -> str:
    """One of KINDS, for a text that names_of() can read."""
    if re.search(r"(^|[/_])tests?([/_.]|$)", path):
        return "tests"
    if re.search(r"^if __name__ == .__main__.:", text, re.M):
        return "script"
    has_class = any(isinstance(node, ast.ClassDef) for node in ast.parse(text).body)
    return "classes" if has_class else "functions"


def names_of(text: str) -> list[str]:
    """Of the file's functions, in order, each once."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    names = [n.name for n in sorted(found, key=lambda n: n.lineno) if not n.name.startswith("__")]
    return list(dict.fromkeys(names))


def tasks(documents: Sequence[corpus.Document], count: int, seed: int = 0) -> list[Task]:
    """`count` of the files that have two functions and fit: of each kind in turn, in a random order."""
    order = list(documents)
    random.Random(seed).shuffle(order)
    by_kind: dict[str, list[Task]] = {kind: [] for kind in KINDS}
    for document in order:
        lines = document.text.count("\n")
        names = names_of(document.text)
        fits = SHORTEST <= lines <= LONGEST and len(document.text) <= MOST_CHARACTERS
        if not fits or len(names) < 2 or "```" in document.text:
            continue
        changes = (
            f"Rename the function `{names[0]}` to `{names[0]}_checked`.",
            f"Add the comment `# reviewed` in the line before the function `{names[1]}`.",
        )
        kind = kind_of(document.path, document.text)
        by_kind[kind].append(Task(document.path, kind, document.text, changes))
        if all(len(some) >= count for some in by_kind.values()):
            break
    turns = itertools.zip_longest(*by_kind.values())
    return [task for turn in turns for task in turn if task is not None][:count]


def prompt(text: str, change: str) -> str:
    return (
        f"Rewrite this file with one change. {change} Answer with the whole file only.\n\n"
        f"```python\n{text.strip()}\n```\n"
    )


def file_in(answer: str) -> str:
    """The file in a Markdown block of the answer, or else all of it."""
    _, fence, rest = answer.partition("```")
    if not fence:
        return answer
    return rest.partition("\n")[2].partition("```")[0]


@dataclass
class Edited:
    """An answer."""

    text: str
    tokens: int
    passes: int  # of the large model
    drafts: int
    seconds: float

    @property
    def per_pass(self) -> float:
        return self.tokens / self.passes

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


@dataclass
class Result:
    way: Way
    files: list[Edited] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        return [edited.text for edited in self.files]

    def ratios(self, plain: "Result") -> list[float]:
        """Speed-ups, by file."""
        return [a.speed / b.speed for a, b in zip(self.files, plain.files, strict=True)]


def request_of(client: Client, way: Way, text: str, new_tokens: int):
    m = client.messages
    names = {
        f.message_type.name: f.name
        for f in m.GenerateRequest.DESCRIPTOR.oneofs_by_name["method"].fields
    }
    request = m.GenerateRequest(
        model=way.deployment,
        chat=m.Chat(messages=[m.ChatMessage(role="user", content=text)]),
        temperature=0,
        repetition_penalty=1,
        max_new_tokens=new_tokens,
    )
    getattr(request, names[way.method]).CopyFrom(way.message(m))
    return request


def measure(
    client: Client,
    ways: Sequence[Way],
    all_tasks: Sequence[Task],
    new_tokens: int,
    progress: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[Result]]:
    """By round. File by file all ways in a new order, one request at a time. Each prompt is read once before, so
    that all find it in the prefix cache."""
    order = random.Random(0)
    results = {name: [Result(way) for way in ways] for name in ROUNDS}
    for task in all_tasks:
        text = task.text
        for name, change in zip(ROUNDS, task.changes, strict=True):
            asked = prompt(text, change)
            client.complete(request_of(client, PLAIN, asked, 1))
            runs = list(results[name])
            order.shuffle(runs)
            for result in runs:
                start = clock()
                choice = client.complete(request_of(client, result.way, asked, new_tokens))
                seconds, stats = clock() - start, choice.finished.stats
                tokens = choice.finished.usage.completion_tokens
                result.files.append(
                    Edited(choice.text, tokens, stats.large_passes, stats.draft_tokens, seconds)
                )
                progress()
            text = file_in(results[name][0].texts[-1])
    return results


def table(name: str, results: Sequence[Result]) -> str:
    """Medians over the files, with the least and the most."""
    plain = results[0]
    head = [name, "tokens per pass", "tokens/s", "× AR", "drafts", "equal texts"]
    rows = []
    for r in results:
        equal = sum(a == b for a, b in zip(r.texts, plain.texts, strict=True))
        rows.append(
            [
                r.way.name,
                report.spread([edited.per_pass for edited in r.files], 2),
                report.spread([edited.speed for edited in r.files]),
                report.spread(r.ratios(plain), 2),
                str(sum(edited.drafts for edited in r.files)),
                f"{equal} of {len(r.files)}",
            ]
        )
    return report.table(head, rows)


def files_table(all_tasks: Sequence[Task], results: Sequence[Result]) -> str:
    """The speed-up of each way by file."""
    columns = [r.ratios(results[0]) for r in results[1:]]
    head = ["file", "kind", "tokens", *(f"{r.way.name}, × AR" for r in results[1:])]
    rows = [
        [task.path, task.kind, str(edited.tokens), *(f"{column[i]:.2f}" for column in columns)]
        for i, (task, edited) in enumerate(zip(all_tasks, results[0].files, strict=True))
    ]
    return report.table(head, rows)


def main(serve, count: int, new_tokens: int, names: str | None, stdlib: Path, bar) -> int:
    """`serve`: from a deployment file to a context with a Client."""
    if not LARGE.exists():
        print("not here: qwen2.5-coder-1.5b; scripts/models fetch qwen2.5-coder-1.5b")
        return 1
    wanted = [n.strip().lower() for n in (names or "").split(",")]
    ways = [w for w in WAYS if w is PLAIN or any(n in w.name for n in wanted)]
    pair = any(w.deployment == "pair" for w in ways) and SMALL.exists()
    ways = [w for w in ways if pair or w.deployment != "pair"]
    all_tasks = tasks(corpus.read_documents(stdlib), count)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "editing.textproto"
        path.write_text((CONFIG if pair else ALONE).format(large=LARGE, small=SMALL, masks=MASKS))
        total = len(all_tasks) * len(ROUNDS) * len(ways)
        with serve(path) as client, bar(total, "editing") as shown:
            results = measure(client, ways, all_tasks, new_tokens, shown.update)
    different = False
    for name, of_round in results.items():
        print(f"\n{table(name, of_round)}\n\n{files_table(all_tasks, of_round)}", flush=True)
        different |= any(r.texts != of_round[0].texts for r in of_round)
    if different:
        print("not equal to autoregressive decoding")
    return 1 if different else 0
