"""Multiplications and memory operations of decoding, from the passes that a server reports.

    python -m tuning.costs bild         BiLD against autoregressive decoding (arXiv 2302.07863, figure 8)
    python -m tuning.costs llm-to-slm   by answer length (arXiv 2402.16844, figure 6)
    python -m tuning.costs ppd          compute per token by k (arXiv 2307.05908, figure 4)
    python -m tuning.costs origins      answers of BiLD with the origin of each token (its figure 10)

A memory operation reads a weight or a number of the KV cache. Activations are not counted. Load changes no figure.
Without models/code-small-aligned (python -m tuning.align), `bild` has no rows of it and `origins` uses models/code-small.
In texts, [text] comes from the large model and {text} replaced a proposal; the small model proposed the rest.
"""

import argparse
import functools
import itertools
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoConfig

from measure.paths import ROOT
from measure.report import table
from measure.serving import BINARY, server
from tuning import corpus
from tuning.evaluate import conditioned_cost
from tuning.evaluate.grid import AR, EXACT_ROLLBACK, Configuration, bild, speculative
from tuning.evaluate.measure import held_out_tasks

LARGE, SMALL = ROOT / "models/code-large", ROOT / "models/code-small"
ALIGNED = ROOT / "models/code-small-aligned"  # python -m tuning.align makes it
LENGTHS = (10, 25, 50, 100, 200)
CANDIDATES = (1, 2, 3, 5)
LAYERS, EARLY = 8, 4  # of code-large
CONFIG = f"""
devices {{ name: "cpu:0" threads: 1 }}
devices {{ name: "cpu:0/1" threads: 1 }}
models {{ name: "large" path: "{LARGE}" extras {{ name: "head" path: "{LARGE}-heads/layer-{EARLY}" }} }}
models {{
  name: "worker" path: "{LARGE}" layers: {LAYERS - EARLY} device: "cpu:0/1"
  extras {{ name: "head" path: "{LARGE}-heads/layer-{EARLY}" }}
}}
models {{ name: "small" path: "{SMALL}" }}
deployments {{
  name: "code" large: "large" small: "small"
  ppd {{ exit_layer: {EARLY} workers: "worker" head: "head" }}
}}
"""
WITH_ALIGNED = f"""
models {{ name: "aligned" path: "{ALIGNED}" }}
deployments {{ name: "code-aligned" large: "large" small: "aligned" }}
"""


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder with a gated MLP."""

    layers: int  # weights of all layers' matrices
    output: int  # weights of the output matrix
    attention: int  # multiplications of a row for each token that it attends to
    cache: int  # keys and values of a token

    @classmethod
    def read(cls, model: Path) -> "Shape":
        """Of a Hugging Face directory or a GGUF file."""
        gguf = model.suffix == ".gguf"
        where = (model.parent,) if gguf else (model,)
        c = AutoConfig.from_pretrained(*where, **({"gguf_file": model.name} if gguf else {}))
        if c.is_encoder_decoder:
            raise ValueError(f"{model}: allowed: models without an encoder")
        head = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        queries, keys = c.num_attention_heads * head, c.num_key_value_heads * head
        layer = c.hidden_size * (2 * queries + 2 * keys + 3 * c.intermediate_size)
        count = c.num_hidden_layers
        return cls(
            count * layer, c.hidden_size * c.vocab_size, 2 * count * queries, 2 * count * keys
        )


@dataclass(frozen=True)
class Cost:
    passes: int = 0
    multiplications: float = 0
    reads: float = 0  # memory operations

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            *(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True))
        )


def pass_cost(shape: Shape, rows: int, outputs: int, context: float) -> Cost:
    """Of a pass that adds `rows` behind `context` tokens, and reads logits of `outputs` of them."""
    per_row = shape.layers + shape.attention * (context + (rows + 1) / 2)
    reads = shape.layers + shape.output + shape.cache * (context + rows)
    return Cost(1, rows * per_row + outputs * shape.output, reads)


def costs(choice, messages, shapes: dict[str, Shape], prompts: bool) -> dict[str, Cost]:
    """Of a traced answer, by role: "large" and "small". `prompts`: with the passes over the prompt.

    A decoding pass is taken to lie behind the prompt and half of the answer.
    """
    done = choice.finished
    if done.trace.omitted:
        raise ValueError(f"{done.trace.omitted} passes have no record; allowed: 0")
    half_way = done.usage.prompt_tokens + done.usage.completion_tokens / 2
    roles = {messages.PASS_ROLE_LARGE: "large", messages.PASS_ROLE_SMALL: "small"}
    found = {role: Cost() for role in shapes}
    for record in done.trace.passes:
        prefill = record.kind == messages.PASS_KIND_PREFILL
        if prefill and not prompts:
            continue
        outputs = record.rows if record.kind == messages.PASS_KIND_VERIFY else 1
        context = 0 if prefill else half_way - record.rows / 2
        role = roles[record.role]
        found[role] += pass_cost(shapes[role], record.rows, outputs, context)
    return found


def count(client, way: Configuration, tasks, new_tokens: int, shapes) -> tuple[int, Cost, Cost]:
    """Tokens of all answers, and costs of the large and the small model without the prompts."""
    tokens, large, small = 0, Cost(), Cost()
    for task in tasks:
        method = way.message(client.messages)
        asked = client.request(way.deployment, list(task.prompt), new_tokens, method, trace=True)
        choice = client.complete(asked)
        tokens += choice.finished.usage.completion_tokens
        found = costs(choice, client.messages, shapes, prompts=False)
        large, small = large + found["large"], small + found["small"]
    return tokens, large, small


def bild_line(name: list[str], counted, ar) -> list[str]:
    """Costs per token over those of autoregressive decoding."""
    tokens, large, small = counted
    mine, theirs = large + small, ar[1] + ar[2]
    work = mine.multiplications / theirs.multiplications * ar[0] / tokens
    reads = mine.reads / theirs.reads * ar[0] / tokens
    passes = (large.passes / tokens, small.passes / tokens)
    return [*name, *(f"{x:.2f}" for x in (*passes, work, reads, work / reads))]


def has_aligned(otherwise: str) -> bool:
    """Says on stderr what happens without the aligned model."""
    if not ALIGNED.exists():
        name = ALIGNED.relative_to(ROOT)
        print(f"{name}: not found; {otherwise}. Train it: python -m tuning.align", file=sys.stderr)
    return ALIGNED.exists()


BILD_HEAD = [
    "method",
    "drafts by",
    "parameters",
    "large passes per token",
    "small passes per token",
]
BILD_HEAD += ["multiplications / AR", "memory operations / AR", "intensity / AR"]


def bild_table(client, tasks, given) -> str:
    shapes = {"large": Shape.read(LARGE), "small": Shape.read(SMALL)}
    ar = count(client, AR, tasks, given.new_tokens, shapes)
    lines = [bild_line(["autoregressive", "-", "-"], ar, ar)]
    for pair in ("code", "code-aligned") if has_aligned("its rows are left out") else ("code",):
        ways = [bild("BiLD", pair, r, fallback_threshold=0.4) for r in (EXACT_ROLLBACK, 2, 5)]
        for way in [*ways, speculative("speculative", pair, draft_tokens=4)]:
            counted = count(client, way, tasks, given.new_tokens, shapes)
            lines.append(bild_line([way.series, way.small, way.settings], counted, ar))
    return table(BILD_HEAD, lines)


PPD_HEAD = ["k", "match rate, %", "latency in layers / AR", "Theorem 4.1"]
PPD_HEAD += ["compute in layers per token / AR", "equation 6"]


def ppd_line(stats: list, tokens: int, k: int) -> list[str]:
    """`stats`: of the answers, with `tokens` tokens in all."""
    rate = sum(s.matches for s in stats) / sum(s.rounds for s in stats)
    main = sum(s.main_layers for s in stats) / (tokens * LAYERS)
    worker = sum(s.worker_layers for s in stats) / (tokens * LAYERS)
    above = 1 - EARLY / LAYERS
    theorem = 1 - above * rate
    figures = (main, theorem, main + worker, theorem + k * above)
    return [str(k), f"{100 * rate:.0f}", *(f"{x:.2f}" for x in figures)]


def ppd_table(client, tasks, given) -> str:
    lines = []
    for k in CANDIDATES:
        method = client.messages.Ppd(num_candidates=k)
        asked = (client.request("code", list(t.prompt), given.new_tokens, method) for t in tasks)
        ends = [client.complete(request).finished for request in asked]
        tokens = sum(end.usage.completion_tokens for end in ends)
        lines.append(ppd_line([end.stats for end in ends], tokens, k))
    return table(PPD_HEAD, lines)


def marked(tokens, messages, tokenizer) -> str:
    def marks(token) -> tuple[str, str]:
        if token.corrected:
            return "{", "}"
        return ("[", "]") if token.proposed == messages.SOURCE_LARGE else ("", "")

    runs = [(pair, [t.id for t in run]) for pair, run in itertools.groupby(tokens, key=marks)]
    return "".join(f"{pair[0]}{tokenizer.decode(ids)}{pair[1]}" for pair, ids in runs)


def origins(client, tasks, given) -> str:
    """Names the small model, then the answers."""
    aligned = has_aligned(f"{SMALL.relative_to(ROOT)} drafts")
    deployment, small = ("code-aligned", ALIGNED) if aligned else ("code", SMALL)
    tokenizer, m = Tokenizer.from_file(str(LARGE / "tokenizer.json")), client.messages
    method = m.Bild(fallback_threshold=0.4, rollback_threshold=EXACT_ROLLBACK)
    asked = (client.request(deployment, list(t.prompt), given.new_tokens, method) for t in tasks)
    texts = [marked(client.complete(r).tokens, m, tokenizer) for r in asked]
    return "\n\n".join([f"Small model: {small.relative_to(ROOT)}", *texts])


CONDITIONED_HEAD = ["large → small", "answer tokens", "large, millions of multiplications", "small"]
CONDITIONED_HEAD += ["LLM-to-SLM", "LLM-to-SLM / small", "large / LLM-to-SLM"]


def conditioned_line(pair: str, new_tokens: int, large: float, small: float, both: float):
    millions = [f"{x / 1e6:,.0f}" for x in (large, small, both)]
    return [pair, str(new_tokens), *millions, f"{both / small:.2f}", f"{large / both:.2f}"]


def conditioned_lines(client, pair: conditioned_cost.Pair, prompt: str) -> list[list[str]]:
    """Prompts included. The small model's deployment names it as its large model."""
    shapes = {"large": Shape.read(pair.large), "small": Shape.read(pair.small)}
    known = {conditioned_cost.SMALL: {"large": shapes["small"]}}
    lines = []
    for new_tokens in LENGTHS:
        work = []
        for way in (conditioned_cost.LARGE, conditioned_cost.SMALL, conditioned_cost.WHOLE):
            request = conditioned_cost.request_of(client, way, prompt, new_tokens, trace=True)
            choice = client.complete(request)
            found = costs(choice, client.messages, known.get(way, shapes), prompts=True)
            work.append(sum(cost.multiplications for cost in found.values()))
        lines.append(conditioned_line(pair.name, new_tokens, *work))
    return lines


def conditioned_table(serve, stdlib: Path) -> str:
    lines = []
    for pair in conditioned_cost.PAIRS:
        if "docstring" in pair.name or not (pair.large.exists() and pair.small.exists()):
            continue
        (prompt,) = conditioned_cost.cut_prompts(stdlib, pair, 1, seed=2)
        with tempfile.TemporaryDirectory() as folder:
            names = conditioned_cost.write_projectors(pair, Path(folder))
            text = conditioned_cost.deployment_file(pair, Path(folder), names)
            with serve(text) as client:
                lines += conditioned_lines(client, pair, prompt)
    return table(CONDITIONED_HEAD, lines)


@contextmanager
def serving(binary: Path, text: str):
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.textproto"
        config.write_text(text)
        with server(binary, config=config) as client:
            yield client


TABLES = {"bild": bild_table, "ppd": ppd_table, "origins": origins}


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("what", choices=[*TABLES, "llm-to-slm"])
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    parser.add_argument("--server", type=Path, default=BINARY)
    given = parser.parse_args()
    serve = functools.partial(serving, given.server)
    if given.what == "llm-to-slm":
        print(conditioned_table(serve, given.stdlib))
        return
    _, tasks = held_out_tasks(LARGE, given.stdlib, given.prompts, given.new_tokens)
    with serve(CONFIG + WITH_ALIGNED * ALIGNED.exists()) as client:
        print(TABLES[given.what](client, tasks, given))


if __name__ == "__main__":
    main()
