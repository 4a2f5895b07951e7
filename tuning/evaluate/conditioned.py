"""Evaluates LLM-to-SLM on the demo pairs: small models conditioned on the large one.

    scripts/evaluate --llm-to-slm [--prompts N] [--conditioned-models FOLDER] [--write]
    scripts/evaluate --llm-to-slm --acceptance

Two pairs: decoders complete held-out files, and encoder-decoders write docstrings of held-out functions. The
prefix cache is not used. The baselines are the large model, the small model, and the small model tuned on texts
of the same files without conditioning; the last table has the training settings. Then the same small models
draft for the large one, whose answers must not change. The reports of the trainings have likelihoods of
held-out texts; the gain of conditioning is the difference between two trainings with equal settings. If
scripts/models has downloaded Qwen2.5-Coder 1.5B and SmolLM2 135M, they are a third pair
(conditioned_functions.py). --conditioned-models is a folder with other models: `PAIR-small-conditioned` with
training.json, and `PAIR-small-tuned`.

With --acceptance only counts accepted drafts, which is independent of load.
"""

import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from measure import machine
from measure.paths import ROOT
from measure.report import table
from measure.serving import Client, at_once
from tuning import corpus
from tuning.conditioned_difference import mean_and_error, trained
from tuning.evaluate import conditioned_functions, docstrings, page
from tuning.evaluate.grid import Configuration, speculative
from tuning.evaluate.measure import (
    LARGE,
    Answer,
    Row,
    Task,
    cut_tasks,
    decode,
    rate,
    rouge_of_tokens,
    seconds_per_token,
    take_turns,
)
from tuning.evaluate.quality import rouge_l_of_texts
from tuning.windows import TokenStream

BEGIN, END = "<!-- llm to slm: begin -->", "<!-- llm to slm: end -->"
PROMPT_TOKENS = NEW_TOKENS = 100
DRAFTS = 4
STREAMS = 8  # where nothing is timed
# The paper's table 2, the mean of three languages: BLEU and ms per token; table 3: ROUGE-L.
PAPER = [
    ["T5-Large", "31.94", "61.5"],
    ["T5-Small", "29.93", "14.2"],
    ["T5-Large → T5-Small", "31.54", "14.8"],
    ["T5-Large → GPT-2", "31.05", "20.7"],
]

SMALL = Configuration("small alone", "small", "Autoregressive")
TUNED = Configuration("small, tuned alone", "tuned", "Autoregressive")


@dataclass(frozen=True)
class Setting:
    """A pair. Deployments of its file: `pair`, the large model with the small one as it came; that with
    -tuned and -conditioned; small and tuned, small models alone."""

    title: str
    pair: str
    new_tokens: int
    scorer: str | None  # a deployment of the large model, where texts have likelihoods
    training_lines: Callable[[list[dict]], str]

    @property
    def config(self) -> Path:
        return Path(__file__).with_name(f"conditioned_{self.pair}.textproto")

    def folder(self, others: Path | None = None) -> Path:
        """Where its conditioned and its tuned model are: `others` if they are there, or the repository's models."""
        names = f"{self.pair}-small-conditioned/training.json", f"{self.pair}-small-tuned"
        there = others is not None and all((others / name).exists() for name in names)
        return others.resolve() if there else ROOT / "models"

    def reports(self, others: Path | None = None) -> Path:
        return self.folder(others) / f"{self.pair}-small-conditioned/training.json"

    def deployments(self, others: Path | None = None) -> str:
        """What a server is to serve: `config`, its models by their whole paths."""
        text, folder = self.config.read_text(), self.folder(others)
        for name in (f"{self.pair}-small-conditioned", f"{self.pair}-small-tuned"):
            text = text.replace(f"../../models/{name}", str(folder / name))
        return text.replace("../../models", str(ROOT / "models"))

    @property
    def ar(self) -> Configuration:
        return Configuration("autoregressive", self.pair, "Autoregressive", promises_exact=True)

    @property
    def conditioned(self) -> Configuration:
        return Configuration("LLM-to-SLM", f"{self.pair}-conditioned", "LlmToSlm")

    @property
    def writing(self) -> list[Configuration]:
        return [SMALL, TUNED, self.conditioned]

    @property
    def drafting(self) -> list[Configuration]:
        return [
            speculative("small alone", self.pair, draft_tokens=DRAFTS),
            speculative("small, tuned alone", f"{self.pair}-tuned", draft_tokens=DRAFTS),
            Configuration(
                "LLM-to-SLM, verified",
                f"{self.pair}-conditioned",
                "LlmToSlm",
                {"speculative": True, "draft_tokens": DRAFTS},
                promises_exact=True,
            ),
        ]


@dataclass(frozen=True)
class Cost:
    """Milliseconds: prefill of the large model, and whole answers."""

    reading: float
    small: float
    conditioned: float
    large: float

    @property
    def over(self) -> float:
        """The conditioned model's time over the small one's own and the reading."""
        return self.conditioned / (self.small + self.reading)


def milliseconds(row: Row) -> float:
    return 1000 * seconds_per_token(row.answers())


def measure_reading(client, setting: Setting, tasks: list[Task]) -> float:
    """Seconds of an answer of one token by the large model: mostly its reading."""
    return statistics.median(decode(client, setting.ar, task, 1).seconds for task in tasks)


def cost_of(setting: Setting, ar: Row, rows: list[Row], reading: float) -> Cost:
    """`small`: the tuned one, whose answers are about as long as the conditioned one's."""

    def whole(row: Row) -> float:
        return 1000 * statistics.mean(answer.seconds for answer in row.answers())

    by_name = {row.configuration: row for row in rows}
    return Cost(
        1000 * reading, whole(by_name[TUNED]), whole(by_name[setting.conditioned]), whole(ar)
    )


def writing_table(setting: Setting, ar: Row, rows: list[Row]) -> str:
    head = ["generates", "ms per token", "speed-up over large", "ROUGE-L"]
    lines = [["large", f"{milliseconds(ar):.2f}", "1", page.percent(ar.rouge)]]
    shown = [ar] + [row for row in rows if row.configuration in setting.writing]
    for row in shown[1:]:
        cells = [f"{milliseconds(row):.2f}", page.spread(row), page.percent(row.rouge)]
        lines.append([row.configuration.series, *cells])
    if setting.scorer:
        head.append("nats/token under large")
        for line, row in zip(lines, shown, strict=True):
            line.append(number(row.nll))
    return table(head, lines)


def drafting_table(setting: Setting, rows: list[Row]) -> str:
    lines = [
        [
            row.configuration.series,
            f"{row.kept:.2f}",
            page.spread(row),
            page.percent(row.equal, 0),
        ]
        for row in rows
        if row.configuration in setting.drafting
    ]
    head = [f"drafts {DRAFTS}", "accepted per round", "speed-up over large", "equal to AR's, %"]
    return table(head, lines)


@contextlib.contextmanager
def served(serve, setting: Setting, others: Path | None) -> Iterator[Client]:
    with tempfile.TemporaryDirectory(prefix="tandem-conditioned-") as folder:
        config = Path(folder) / "conditioned.textproto"
        config.write_text(setting.deployments(others))
        with serve(config) as client:
            yield client


def count_kept(client, setting: Setting, tasks: list[Task], progress) -> list[Row]:
    """The small models as drafters of every task."""

    def row_of(configuration: Configuration) -> Row:
        def one(task: Task) -> Answer:
            answer = decode(client, configuration, task, setting.new_tokens)
            progress()
            return answer

        return Row(configuration, [list(at_once(one, tasks, STREAMS))])

    wanted = [answer.tokens for answer in row_of(setting.ar).answers()]
    rows = [row_of(configuration) for configuration in setting.drafting]
    for row in rows:
        pairs = zip(row.answers(), wanted, strict=True)
        row.equal = statistics.mean(answer.tokens == tokens for answer, tokens in pairs)
    return rows


def kept_table(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        rounds = [sum(answer.accept_lengths) for answer in row.answers()]
        kept = [sum(i * n for i, n in enumerate(a.accept_lengths)) for a in row.answers()]
        mean, error = mean_and_error(kept, rounds)
        cells = [f"{mean:.3f} ± {error:.3f}", str(sum(rounds)), page.percent(row.equal, 0)]
        lines.append([row.configuration.series, *cells])
    return table([f"drafts {DRAFTS}", "accepted per round", "rounds", "equal to AR's, %"], lines)


def is_shipped(report: dict) -> bool:
    """Whether the trained model is in models/."""
    given = report.get("command", [])
    written = [given[i + 1] for i, option in enumerate(given[:-1]) if option == "--write-small"]
    return any(Path(folder).parent.name == "models" for folder in written)


def rates(settings: dict) -> str:
    """At their peak: the small model's, of matrices and of its other numbers where they differ; the
    projector's; and dropout."""
    of_vectors = settings.get("vector_rate")
    if of_vectors is None:
        parts, projector = [f"{settings['small_rate']:g}"], settings["rate"]
    else:
        parts = [f"{settings['matrix_rate']:g}, {of_vectors:g}"]
        projector = settings.get("projector_rate", of_vectors)
    if settings["conditioned"]:
        parts.append(f"{projector:g}")
    return "; ".join([*parts, f"dropout {settings.get('dropout', 0):g}"])


def how(report: dict) -> list[str]:
    """Settings and size of a training."""
    settings = report["settings"]
    layer = f", layer {settings['layer']}" if "layer" in settings else ""
    conditioned = f"{settings['fusion']}{layer}" if settings["conditioned"] else "unconditioned"
    conditioned += ", other texts' states" * (settings.get("rows") == "other")
    batch = settings.get("batch") or settings["names"] + settings["docstrings"]
    return [
        conditioned + ", **shipped**" * is_shipped(report),
        f"{settings['train']}, {settings['steps']} x {batch}",
        rates(settings),
        str(settings["samples"]),
    ]


HOW_HEAD = [
    "",
    "training of the small model, steps x texts",
    "rates: small; projector; dropout",
    "texts",
]


def completions_table(reports: list[dict]) -> str:
    """Nats per token of the held-out files themselves behind cuts of 16 tokens and more, as trainings
    (tuning/llm_to_slm.py) reported them."""
    first = reports[0]["nats"]
    blank = ["-"] * (len(HOW_HEAD) - 1)
    lines = [[name, *blank, *map(number, first[name].values())] for name in ("small", "large")]
    for report in reports:
        nats = report["nats"][trained(report)]
        lines.append([*how(report), *map(number, nats.values())])
    parts = [f"tokens {part}" for part in list(first["small"])[1:]]
    return table([*HOW_HEAD, "nats/token", *parts], lines)


def functions_table(reports: list[dict]) -> str:
    """The same of held-out functions' docstrings and names (tuning/conditioned_encoders.py)."""

    def cells(seen: dict) -> list[str]:
        nats, right = seen["nats"], page.percent(seen["names_right"])
        rouge = page.percent(seen["docstrings_rouge_l"])
        return [number(nats["docstring"]), rouge, number(nats["name"]), right]

    blank = ["-"] * (len(HOW_HEAD) - 1)
    lines = [[name, *blank, *cells(reports[0][name])] for name in ("small", "large")]
    lines += [[*how(r), *cells(r[trained(r)])] for r in reports]
    head = ["docstrings, nats/token", "ROUGE-L", "names, nats/token", "names right, %"]
    return table([*HOW_HEAD, *head], lines)


SETTINGS = [
    Setting("Completions", "code", NEW_TOKENS, LARGE, completions_table),
    Setting("Docstrings", "docstring", docstrings.NEW_TOKENS, None, functions_table),
]


def number(value: float) -> str:
    return f"{value:.3f}"


def markdown(setting: Setting, ar: Row, rows: list[Row], cost: Cost, reports: list[dict]) -> str:
    """A pair's own part of the section."""
    answers = ar.answers()
    length = statistics.mean(len(answer.tokens) for answer in answers)
    return f"""### {setting.title}

{len(answers)} held-out prompts, up to {setting.new_tokens} new tokens (large model's mean: {length:.0f}), one request at a time, no prefix cache.

{writing_table(setting, ar, rows)}

Prefill and one token of the large model take {cost.reading:.1f} ms. An LLM-to-SLM answer takes {cost.conditioned:.1f} ms: {cost.over:.2f} × the tuned small
model's {cost.small:.1f} ms plus that prefill, and 1/{cost.large / cost.conditioned:.1f} of the large model's time.

The same small models as draft models:

{drafting_table(setting, rows)}

Likelihood of held-out texts, from the training reports:

{setting.training_lines(reports)}
"""


def section(parts: list[str], conditions: page.Conditions) -> str:
    return f"""{"".join(part + chr(10) for part in parts)}The paper's results for translation on a GPU (table 2):

{table(["", "BLEU", "ms per token"], PAPER)}

{page.condition_table(conditions)}"""


def tasks_of(setting: Setting, args) -> tuple[list[list[Task]], Callable[[list[int], Task], float]]:
    """Turns, and how near an answer is to what the held-out file says. All docstrings that there are: they
    are short."""
    name = ROOT / f"models/{setting.pair}-large/tokenizer.json"
    tokenizer = Tokenizer.from_file(str(name))
    if setting.scorer is None:
        tasks = docstrings.held_out_tasks(args.stdlib, tokenizer, args.seed)
        size = len(tasks) // args.turns

        def rouge(tokens: list[int], task: Task) -> float:
            wanted = tokenizer.decode(list(task.reference))
            return rouge_l_of_texts(tokenizer.decode(tokens), wanted)
    else:
        _, held_out = corpus.split(corpus.read_documents(args.stdlib))
        stream = TokenStream(tokenizer, [document.text for document in held_out])
        size, rouge = args.prompts, rouge_of_tokens
        tasks = cut_tasks(stream, args.turns * size, PROMPT_TOKENS, setting.new_tokens, args.seed)
    return [tasks[i * size : (i + 1) * size] for i in range(args.turns)], rouge


def measure_pair(serve, setting: Setting, args, bar) -> tuple[str, list[Configuration]]:
    """A pair's part of the section, and what was not equal to AR and must be."""
    turns, rouge = tasks_of(setting, args)
    tasks = [task for turn in turns for task in turn]
    grid = setting.writing + setting.drafting
    with served(serve, setting, args.conditioned_models) as client:
        with bar(len(tasks) * (len(grid) + 1), setting.title) as shown:
            ar, rows = take_turns(
                client, grid, turns, setting.new_tokens, args.seed, shown.update, setting.ar
            )
        reading = measure_reading(client, setting, tasks[: args.turns * args.prompts])
        rate(client, ar, rows, turns, rouge, setting.scorer)
    unequal = [r.configuration for r in rows if r.configuration.promises_exact and r.equal < 1]
    reports = json.loads(setting.reports(args.conditioned_models).read_text())
    cost = cost_of(setting, ar, rows, reading)
    return markdown(setting, ar, rows, cost, reports), unequal


def measure_kept(serve, settings: list[Setting], args, bar) -> list[Configuration]:
    """Prints how many drafts stay; what was not equal to AR."""
    unequal = []
    for setting in settings:
        tasks = [task for turn in tasks_of(setting, args)[0] for task in turn]
        total = len(tasks) * (len(setting.drafting) + 1)
        serving = served(serve, setting, args.conditioned_models)
        with serving as client, bar(total, setting.title) as shown:
            rows = count_kept(client, setting, tasks, shown.update)
        title = f"### {setting.title}\n\n{len(tasks)} held-out prompts, up to {setting.new_tokens} new tokens."
        print(f"{title}\n\n{kept_table(rows)}\n")
        unequal += [row.configuration for row in rows if row.equal < 1]
    return unequal


def say(unequal: list[Configuration]) -> int:
    for configuration in unequal:
        print(f"not equal to AR, and must be: {configuration}", file=sys.stderr)
    return 1 if unequal else 0


def main(serve, args, command: str, bar) -> int:
    """`serve`: from a deployment file to a context with a Client. 1: something that must be equal is not."""
    others = args.conditioned_models
    if others and all(setting.folder(others) != others.resolve() for setting in SETTINGS):
        pairs = " or ".join(setting.pair for setting in SETTINGS)
        raise SystemExit(
            f"--conditioned-models: {others} has no pair; allowed: a folder with PAIR-small-conditioned, in it training.json, "
            f"and PAIR-small-tuned, of {pairs}"
        )
    settings = [s for s in SETTINGS if s.reports(others).exists()]
    if args.acceptance:
        return say(measure_kept(serve, settings, args, bar))
    started = time.monotonic()
    busy = [machine.load_before(args.write)]
    measured = [measure_pair(serve, s, args, bar) for s in settings]
    parts = [part for part, _ in measured]
    if conditioned_functions.is_here():
        parts.append(conditioned_functions.part(serve, args, bar))
    else:
        print("without the pair that scripts/models fetches", file=sys.stderr)
    busy.append(machine.load())
    conditions = page.Conditions.here(
        started,
        command=command,
        busy=busy,
        prompts=args.turns * args.prompts,
        prompt_tokens=PROMPT_TOKENS,
        new_tokens=NEW_TOKENS,
        turns=args.turns,
    )
    text = section(parts, conditions)
    print(text)
    if args.write:
        file = ROOT / "docs" / "reports" / "llm_to_slm.md"
        file.write_text(page.put(file.read_text(), text, BEGIN, END))
    return say([configuration for _, those in measured for configuration in those])
