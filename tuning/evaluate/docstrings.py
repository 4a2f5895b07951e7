"""The pair with encoders on held-out functions: BiLD in its papers' own setting, a source and a summary.

    scripts/evaluate --docstrings [--quick] [--write]

The encoder reads a function without its docstring, the decoder writes that docstring's first line; what
it writes is compared with the file's docstring by ROUGE-L of words (BiLD tables 1 to 4 have summaries and
translations). As with completions, answers that must be the large model's own are checked first, token
for token, and then all methods are measured on the same sources, turn by turn.
"""

import random
import statistics
import sys
import time
from pathlib import Path

from tokenizers import Tokenizer

from measure import machine
from measure.paths import ROOT
from measure.report import folded, table
from tuning import corpus, functions
from tuning.evaluate import page
from tuning.evaluate.grid import (
    DOCSTRING_PAIRS,
    EXACT_ROLLBACK,
    Configuration,
    bild,
    speculative,
)
from tuning.evaluate.measure import Row, Task, count_equal, rate, rated_halves, take_turns
from tuning.evaluate.quality import rouge_l_of_texts
from tuning.functions import DOCSTRING
from tuning.pairs import read_pairs
from tuning.seq2seq import HELD_OUT_SHARE, LONGEST_SOURCE, LONGEST_TARGET

PAIRS_FILE = Path(__file__).with_name("docstrings.textproto")
BEGIN, END = "<!-- docstrings: begin -->", "<!-- docstrings: end -->"
NEW_TOKENS = LONGEST_TARGET
STREAMS = 8

AR = Configuration("autoregressive", "docstring", "Autoregressive", promises_exact=True)


def configurations(quick: bool = False) -> list[Configuration]:
    """All but AR. The papers' ranges for summaries: fallback 0.2 to 0.6, rollback 2 to 6."""
    fallbacks = [0.3, 0.6] if quick else [0.2, 0.3, 0.4, 0.6, 0.8]
    rollbacks = [EXACT_ROLLBACK, 2] if quick else [EXACT_ROLLBACK, 1, 2, 4, 6]
    found = []
    for pair in DOCSTRING_PAIRS:
        for rollback in rollbacks:
            for fallback in fallbacks:
                found.append(bild("BiLD", pair, rollback, fallback_threshold=fallback))
        for gamma in [3] if quick else [2, 3, 5]:
            found.append(speculative("speculative", pair, draft_tokens=gamma))
        found.append(speculative("speculative", pair, draft_tokens=8, pace="PACE_ADAPTIVE"))
    return found


def exact_ones() -> list[Configuration]:
    found = []
    for pair in DOCSTRING_PAIRS:
        found.append(speculative("speculative", pair, draft_tokens=4))
        found.append(speculative("speculative", pair, draft_tokens=8, pace="PACE_ADAPTIVE"))
        for fallback in (0.2, 0.6):
            found.append(bild("BiLD", pair, EXACT_ROLLBACK, fallback_threshold=fallback))
    return found


def held_out_tasks(stdlib: Path, tokenizer: Tokenizer, seed: int) -> list[Task]:
    """Every held-out function with a docstring, in an order that `seed` fixes."""
    _, held_out = functions.split(corpus.read_documents(stdlib), HELD_OUT_SHARE)
    wanted = [example for example in held_out if example.task == DOCSTRING]
    pairs = read_pairs(wanted, tokenizer, LONGEST_SOURCE, LONGEST_TARGET)
    tasks = [Task(tuple(pair.source), tuple(pair.target[:-1])) for pair in pairs]
    random.Random(seed).shuffle(tasks)
    return tasks


HEAD = [*page.HEAD[:7], *page.HEAD[8:]]  # `Score` does not support encoders


def line(row: Row) -> list[str]:
    cells = page.line(row)
    return [*cells[:7], *cells[8:]]


def markdown(
    conditions: page.Conditions,
    ar: Row,
    rows: list[Row],
    counts: dict[Configuration, int],
    checked: int,
    halves: list[page.Half],
) -> str:
    own = ["autoregressive", "-", "-", "1", "100", "100.0", page.percent(ar.rouge), "-", "-"]
    length = statistics.mean(len(answer.tokens) for answer in ar.answers())
    return f"""{page.exactness(counts, checked)}

{conditions.prompts} sources, one request at a time. The large model's answers have {length:.1f} tokens on average. ROUGE-L is computed on words.

{page.summary(*halves, DOCSTRING_PAIRS)}

{folded("All settings", table(HEAD, [own, *(line(row) for row in rows)]))}

{page.condition_table(conditions)}"""


def main(serve, args, command: str, bar) -> int:
    """`serve`: from a deployment file to a context with a Client. 1: something that must be equal is not."""
    started = time.monotonic()
    busy = [machine.load_before(args.write)]
    tokenizer = Tokenizer.from_file(str(ROOT / "models/docstring-large/tokenizer.json"))
    tasks = held_out_tasks(args.stdlib, tokenizer, args.seed)
    checked = tasks[: args.exact_prompts]
    turns = [tasks[i * args.prompts : (i + 1) * args.prompts] for i in range(args.turns)]
    if len(turns[-1]) < args.prompts:
        print(f"{len(tasks)} held-out docstrings; wanted {args.turns} x {args.prompts}")
        return 1
    grid, exact = configurations(args.quick), exact_ones()

    def rouge(tokens: list[int], task: Task) -> float:
        return rouge_l_of_texts(tokenizer.decode(tokens), tokenizer.decode(list(task.reference)))

    with serve(PAIRS_FILE) as client:
        with bar((len(exact) + 1) * len(checked), "equal to AR") as shown:
            counts = count_equal(client, exact, checked, NEW_TOKENS, STREAMS, shown.update, AR)
        runs = len(grid) + max(1, len(grid) // 10)
        with bar(args.turns * args.prompts * runs, "speed and quality") as shown:
            ar, rows = take_turns(client, grid, turns, NEW_TOKENS, args.seed, shown.update, AR)
        rate(client, ar, rows, turns, rouge, scorer=None)
    busy.append(machine.load())
    conditions = page.Conditions.here(
        started,
        command=command,
        busy=busy,
        prompts=args.turns * args.prompts,
        prompt_tokens=LONGEST_SOURCE,
        new_tokens=NEW_TOKENS,
        turns=args.turns,
    )
    halves = rated_halves(ar, rows, turns, rouge)
    measured = markdown(conditions, ar, rows, counts, len(checked), halves)
    print(measured)
    if args.write:
        file = ROOT / "docs" / "reports" / "fidelity.md"
        file.write_text(page.put(file.read_text(), measured, BEGIN, END))
    unequal = [c for c, equal in counts.items() if equal < len(checked)]
    unequal += [r.configuration for r in rows if r.configuration.promises_exact and r.equal < 1]
    for configuration in unequal:
        print(f"not equal to AR, and must be: {configuration}", file=sys.stderr)
    return 1 if unequal else 0
