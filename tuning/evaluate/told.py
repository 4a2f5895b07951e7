"""LLM-to-SLM on the demo pair: what the small model writes when it is told what the large one has read.

    scripts/evaluate --llm-to-slm [--write]

Completions of held-out files, as elsewhere, but every prompt is read anew by whoever reads it. Beside the
large model and the small one stands the small one tuned on the same texts without being told anything:
what telling is worth is the difference to that. Then the same small models as drafters, whose answers
must be the large model's own.
"""

import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from bench.peers import machine
from bench.peers.models import ROOT
from bench.peers.report import table
from tuning import corpus
from tuning.evaluate import page
from tuning.evaluate.grid import AR, Configuration, speculative
from tuning.evaluate.measure import (
    Row,
    Task,
    cut_tasks,
    decode,
    rate,
    seconds_per_token,
    take_turns,
)
from tuning.windows import TokenStream

CONFIG = Path(__file__).with_name("told.textproto")
REPORTS = ROOT / "models/code-small-told/training.json"
BEGIN, END = "<!-- llm to slm: begin -->", "<!-- llm to slm: end -->"
PROMPT_TOKENS = NEW_TOKENS = 100
DRAFTS = 4
# The paper's table 2, the mean of three languages: BLEU and ms per token.
PAPER = [
    ["T5-Large", "31.94", "61.5"],
    ["T5-Small", "29.93", "14.2"],
    ["T5-Large → T5-Small", "31.54", "14.8"],
    ["T5-Large → GPT-2", "31.05", "20.7"],
]

SMALL = Configuration("code-small alone", "small", "Autoregressive")
TUNED = Configuration("tuned, not told", "tuned", "Autoregressive")
TOLD = Configuration("LLM-to-SLM", "code-told", "LlmToSlm")
DRAFTING = [
    speculative("code-small", "code", draft_tokens=DRAFTS),
    speculative("tuned, not told", "code-tuned", draft_tokens=DRAFTS),
    Configuration(
        "LLM-to-SLM, verified",
        "code-told",
        "LlmToSlm",
        {"speculative": True, "draft_tokens": DRAFTS},
        promises_exact=True,
    ),
]
WRITING = [SMALL, TUNED, TOLD]


@dataclass(frozen=True)
class Cost:
    """Milliseconds: of the large model's reading, and of whole answers."""

    reading: float
    small: float
    told: float
    large: float

    @property
    def over(self) -> float:
        """The told model's time over the small one's own and the reading."""
        return self.told / (self.small + self.reading)


def milliseconds(row: Row) -> float:
    return 1000 * seconds_per_token(row.answers())


def measure_reading(client, tasks: list[Task]) -> float:
    """Seconds of an answer of one token by the large model: mostly its reading."""
    return statistics.median(decode(client, AR, task, 1).seconds for task in tasks)


def cost_of(ar: Row, rows: list[Row], reading: float) -> Cost:
    def whole(row: Row) -> float:
        return 1000 * statistics.mean(answer.seconds for answer in row.answers())

    by_name = {row.configuration: row for row in rows}
    return Cost(1000 * reading, whole(by_name[SMALL]), whole(by_name[TOLD]), whole(ar))


def writing_table(ar: Row, rows: list[Row]) -> str:
    lines = [["large", f"{milliseconds(ar):.2f}", "1", page.percent(ar.rouge), f"{ar.nll:.3f}"]]
    for row in rows:
        if row.configuration in WRITING:
            cells = [f"{milliseconds(row):.2f}", page.spread(row), page.percent(row.rouge)]
            lines.append([row.configuration.series, *cells, f"{row.nll:.3f}"])
    head = ["writes", "ms per token", "speed-up over large", "ROUGE-L", "nats/token under large"]
    return table(head, lines)


def drafting_table(rows: list[Row]) -> str:
    lines = [
        [
            row.configuration.series,
            f"{row.kept:.2f}",
            page.spread(row),
            page.percent(row.equal, 0),
        ]
        for row in rows
        if row.configuration in DRAFTING
    ]
    head = [f"drafts {DRAFTS}", "kept of a round", "speed-up over large", "equal to AR's, %"]
    return table(head, lines)


def training_table(reports: list[dict]) -> str:
    """Nats per token of the held-out files themselves, as trainings reported them."""
    first = reports[0]["nats"]
    lines = [[name, "-", "-", *map(number, first[name].values())] for name in ("small", "large")]
    for report in reports:
        s = report["settings"]
        name = "llm_to_slm" if s["told"] else "small, tuned alone"
        how = f"{s['fusion']}, layer {s['layer']}" if s["told"] else "not told"
        trained = f"{s['train']}, {s['steps']} x {s['batch']}"
        lines.append([how, trained, str(s["samples"]), *map(number, report["nats"][name].values())])
    parts = [f"tokens {part}" for part in list(first["small"])[1:]]
    head = ["", "small model trained, steps x texts", "texts", "nats/token", *parts]
    return table(head, lines)


def number(value: float) -> str:
    return f"{value:.3f}"


def markdown(
    conditions: page.Conditions, ar: Row, rows: list[Row], cost: Cost, reports: list[dict]
) -> str:
    return f"""{conditions.prompts} held-out prompts of {conditions.prompt_tokens} tokens, up to {conditions.new_tokens} new ones, one request at a time, no prefix cache; columns as
above.

{writing_table(ar, rows)}

The large model reads a prompt (and says one token) in {cost.reading:.1f} ms. LLM-to-SLM's whole answers take {cost.over:.2f} of the small model's own
time and that reading together ({cost.told:.1f} of {cost.small:.1f} + {cost.reading:.1f} ms), and 1/{cost.large / cost.told:.1f} of the large model's time.

The same small models as drafters. The answers are the large model's own:

{drafting_table(rows)}

What the files themselves say behind cuts of 16 tokens and more, in nats per token, held out (`tuning/llm_to_slm.py`):

{training_table(reports)}

The paper's own, translating on a GPU (table 2), with BLEU and ms per token:

{table(["", "BLEU", "ms per token"], PAPER)}

{page.condition_table(conditions)}"""


def main(serve, args, command: str, bar) -> int:
    """`serve`: from a deployment file to a context with a Client. 1: something that must be equal is not."""
    if not REPORTS.exists():
        print(f"{REPORTS.relative_to(ROOT)}: not there; models/README.md says how it is trained")
        return 1
    started = time.monotonic()
    busy = [machine.load_before(args.write)]
    tokenizer = Tokenizer.from_file(str(ROOT / "models/code-large/tokenizer.json"))
    _, held_out = corpus.split(corpus.read_documents(args.stdlib))
    stream = TokenStream(tokenizer, [document.text for document in held_out])
    tasks = cut_tasks(stream, args.turns * args.prompts, PROMPT_TOKENS, NEW_TOKENS, args.seed)
    turns = [tasks[i * args.prompts : (i + 1) * args.prompts] for i in range(args.turns)]
    grid = WRITING + DRAFTING
    with serve(CONFIG) as client:
        with bar(len(tasks) * (len(grid) + 1), "speed and quality") as shown:
            ar, rows = take_turns(client, grid, turns, NEW_TOKENS, args.seed, shown.update)
        reading = measure_reading(client, tasks)
        rate(client, ar, rows, turns)
    busy.append(machine.load())
    conditions = page.Conditions.here(
        started,
        command=command,
        busy=busy,
        prompts=len(tasks),
        prompt_tokens=PROMPT_TOKENS,
        new_tokens=NEW_TOKENS,
        turns=args.turns,
    )
    reports = json.loads(REPORTS.read_text())
    measured = markdown(conditions, ar, rows, cost_of(ar, rows, reading), reports)
    print(measured)
    if args.write:
        file = ROOT / "docs" / "fidelity.md"
        file.write_text(page.put(file.read_text(), measured, BEGIN, END))
    unequal = [r.configuration for r in rows if r.configuration.promises_exact and r.equal < 1]
    for configuration in unequal:
        print(f"not equal to AR, and must be: {configuration}", file=sys.stderr)
    return 1 if unequal else 0
