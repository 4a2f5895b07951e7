"""LLM-to-SLM with distinct tokenizers: Qwen2.5-Coder 1.5B reads functions, SmolLM2 135M writes a one-line
description or the name.

A part of scripts/evaluate --llm-to-slm if both models are downloaded. The small model is unchanged; only a
projector was trained (tuning/llm_to_slm.py --task functions --train frozen). The functions are from files
outside of its training data. The training data of the two models is unknown and likely includes the standard
library. All models get the same prompt, which ends with the start of a comment, and answer to the end of the
line.
"""

import json
import os
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from measure.paths import ROOT
from measure.report import table
from tuning import conditioned_samples, corpus, frozen_model, functions
from tuning.conditioned_difference import trained
from tuning.evaluate import page
from tuning.evaluate.quality import rouge_l_of_texts
from tuning.functions import DOCSTRING, NAME
from tuning.llm_to_slm import HELD_OUT_FUNCTIONS

FETCHED = Path(os.environ.get("TANDEM_HOME", Path.home() / ".cache" / "tandem")) / "models"
LARGE, SMALL = FETCHED / "qwen2.5-coder-1.5b.gguf", FETCHED / "smollm2-135m.gguf"
PROJECTOR = ROOT / "models/smollm2-135m-conditioned"
NEW_TOKENS = 32
# Keys of the reports: texts with another of the same length, conditioned on their own prompt or on that one.
MATCHED = {
    "the same texts, conditioned on their own": "matched texts, own prompt",
    "conditioned on another prompt": "matched texts, another prompt",
}
TRAINED = {"frozen": "frozen", "lora": "LoRA of rank {rank}", "full": "all weights"}
CONFIG = f"""
models {{ name: "large" path: "{LARGE}" prefix_cache: false }}
models {{
  name: "small" path: "{SMALL}" prefix_cache: false
  extras {{ name: "projector" path: "{PROJECTOR}" }}
}}
deployments {{ name: "small" large: "small" }}
deployments {{ name: "pair" large: "large" small: "small" llm_to_slm {{ adapter: "projector" }} }}
"""


@dataclass(frozen=True)
class Way:
    """Who writes: a deployment of CONFIG and its method. `tokens`: at most."""

    name: str
    deployment: str
    method: str
    tokens: int = NEW_TOKENS


READING = Way("the large one's first token", "pair", "autoregressive", 1)
WAYS = [
    Way("SmolLM2 135M", "small", "autoregressive"),
    Way("LLM-to-SLM", "pair", "llm_to_slm"),
    Way("Qwen2.5-Coder 1.5B", "pair", "autoregressive"),
    READING,
]


@dataclass
class Answers:
    """Results of one method: texts by question, each with the file's own, and seconds and tokens in total."""

    texts: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    tokens: int = 0

    @property
    def names_right(self) -> float:
        return statistics.mean(said.strip() == name for said, name in self.texts[NAME])

    @property
    def rouge(self) -> float:
        return statistics.mean(rouge_l_of_texts(*pair) for pair in self.texts[DOCSTRING])


def is_here() -> bool:
    return LARGE.exists() and SMALL.exists() and (PROJECTOR / "adapter.json").exists()


def tasks(stdlib: Path, settings: dict, count: int, seed: int) -> list[functions.Example]:
    """So many held-out functions of each question, as long in the small model's tokens as those of the
    training (`settings`, of its report)."""
    tokenizer = frozen_model.load_tokenizer(SMALL)
    _, held_out = functions.split(corpus.read_documents(stdlib), HELD_OUT_FUNCTIONS)
    random.Random(seed).shuffle(held_out)
    found: list[functions.Example] = []
    for task in (DOCSTRING, NAME):
        fit = (
            example
            for example in held_out
            if example.task == task
            and settings["shortest_prompt"]
            <= len(tokenizer.encode(conditioned_samples.asked(example)).ids)
            <= settings["longest_prompt"]
        )
        found += [example for example, _ in zip(fit, range(count), strict=False)]
    return found


def ask(client, way: Way, example: functions.Example) -> tuple[str, int, float]:
    """The greedy answer, its tokens and its seconds."""
    m = client.messages
    method = {"autoregressive": m.Autoregressive, "llm_to_slm": m.LlmToSlm}[way.method]()
    request = m.GenerateRequest(
        model=way.deployment,
        text=conditioned_samples.asked(example),
        temperature=0,
        max_new_tokens=way.tokens,
        stop_sequences=["\n"],
        **{way.method: method},
    )
    start = time.perf_counter()
    choice = client.complete(request)
    return choice.text, choice.finished.usage.completion_tokens, time.perf_counter() - start


def measure(client, asked: list[functions.Example], seed: int, progress) -> dict[Way, Answers]:
    """Of each function by all ways in a random order; the first one once before that, unmeasured."""
    order, found = random.Random(seed), {way: Answers() for way in WAYS}
    for way in WAYS:
        ask(client, way, asked[0])
    for example in asked:
        for way in order.sample(WAYS, len(WAYS)):
            text, tokens, seconds = ask(client, way, example)
            answers = found[way]
            answers.texts.setdefault(example.task, []).append((text, example.target))
            answers.seconds.append(seconds)
            answers.tokens += tokens
            progress()
    return found


def markdown(found: dict[Way, Answers], reports: list[dict]) -> str:
    lines = []
    for way, answers in found.items():
        if way == READING:
            continue
        whole = sum(answers.seconds)
        lines.append(
            [
                way.name,
                page.percent(answers.names_right),
                page.percent(answers.rouge),
                f"{answers.tokens / len(answers.seconds):.1f}",
                f"{1000 * whole / len(answers.seconds):.0f}",
                f"{1000 * whole / answers.tokens:.1f}",
            ]
        )
    head = ["generates", "names correct, %", "ROUGE-L of docstrings", "tokens per answer"]
    asked = {task: len(texts) for task, texts in found[READING].texts.items()}
    reading = statistics.median(found[READING].seconds)
    return f"""### Functions: Qwen2.5-Coder 1.5B conditions SmolLM2 135M

Tasks: {asked[DOCSTRING]} held-out functions without their docstrings, {asked[NAME]} without their names. One request at a time, no prefix
cache, greedy until the end of the line. Prefill and one token of the large model take {1000 * reading:.0f} ms.

{table([*head, "ms per answer", "ms per token"], lines)}

{trainings(reports)}
"""


def trainings(reports: list[dict]) -> str:
    """Held-out answers' likelihoods under the small model, as the trainings reported them."""
    lines = [["unchanged small model", "-", *nats_of(reports[0]["nats"]["small"])]]
    for report in reports:
        s, nats = report["settings"], report["nats"]
        small = TRAINED[s["train"]].format_map(s)
        steps = f"{s['steps']} x {s['batch']} of {s['samples']}"
        said = nats[trained(report)]
        lines.append([f"{conditioning_of(report)}, small model {small}", steps, *nats_of(said)])
        for part, name in MATCHED.items():
            if part in nats:
                lines.append([name, "", *nats_of(nats[part])])
    return table(["", "steps x texts", "nats/token", "of docstrings", "of names"], lines)


def conditioning_of(report: dict) -> str:
    """Of a training: whose rows the small model was conditioned."""
    s, models = report["settings"], report.get("models", {"large": "", "small": None})
    if not s["conditioned"]:
        return "unconditioned"
    conditioned = "conditioned on itself" if models["large"] == models["small"] else "conditioned"
    if s.get("rows") == "other":
        conditioned += " on other functions"
    return f"{conditioned}, {s['fusion']}, layer {s['layer']}"


def nats_of(nats: dict[str, float]) -> list[str]:
    return [f"{nats[part]:.3f}" for part in ("all", DOCSTRING, NAME)]


def part(serve, args, bar) -> str:
    """Of the section of --llm-to-slm."""
    reports = json.loads((PROJECTOR / "training.json").read_text())
    asked = tasks(args.stdlib, reports[0]["settings"], args.turns * args.prompts, args.seed)
    with tempfile.TemporaryDirectory(prefix="tandem-conditioned-") as folder:
        config = Path(folder) / "conditioned.textproto"
        config.write_text(CONFIG)
        with serve(config) as client, bar(len(asked) * len(WAYS), "Functions") as shown:
            return markdown(measure(client, asked, args.seed, shown.update), reports)
