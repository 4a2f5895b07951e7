"""Multiplications and memory operations of decoding, from the passes that a server reports.

    python -m tuning.costs bild         figure 8 of arXiv 2302.07863: BiLD against autoregressive decoding
    python -m tuning.costs llm-to-slm   figure 6 of arXiv 2402.16844: by answer length
    python -m tuning.costs ppd          figure 4 of arXiv 2307.05908: compute per token by k

A memory operation reads one weight or one number of the KV cache. Activations are not counted. All figures are
counters, which do not depend on the load of the machine.
"""

import argparse
import functools
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoConfig

from measure.paths import ROOT
from measure.report import table
from measure.serving import BINARY, Client, server
from tuning import corpus
from tuning.evaluate import conditioned_cost
from tuning.evaluate.grid import AR, EXACT_ROLLBACK, Configuration, bild, speculative
from tuning.evaluate.measure import Task, cut_tasks
from tuning.windows import TokenStream

LARGE, SMALL = ROOT / "models/code-large", ROOT / "models/code-small"
ALIGNED = ROOT / "models/code-small-aligned"  # python -m tuning.align makes it
LENGTHS = (10, 25, 50, 100, 200)
CANDIDATES = (1, 2, 3, 5)
EARLY = 4  # of the 8 layers of code-large


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder."""

    layers: int  # weights of all layers' matrices
    output: int  # weights of the output matrix
    attention: int  # multiplications of a row for each token that it attends to
    cache: int  # keys and values of a token

    @classmethod
    def of(cls, config) -> "Shape":
        """Of a decoder with a gated MLP and a tied or separate output matrix."""
        if config.is_encoder_decoder:
            raise ValueError(f"{config.model_type}: allowed: models without an encoder")
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
        layer = config.hidden_size * (2 * queries + 2 * keys + 3 * config.intermediate_size)
        return cls(
            config.num_hidden_layers * layer,
            config.hidden_size * config.vocab_size,
            config.num_hidden_layers * 2 * queries,
            config.num_hidden_layers * 2 * keys,
        )

    @classmethod
    def read(cls, model: Path) -> "Shape":
        """Of a Hugging Face directory or a GGUF file."""
        if model.suffix == ".gguf":
            return cls.of(AutoConfig.from_pretrained(model.parent, gguf_file=model.name))
        return cls.of(AutoConfig.from_pretrained(model))


@dataclass(frozen=True)
class Cost:
    passes: int = 0
    multiplications: float = 0
    reads: float = 0  # numbers read from memory

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.passes + other.passes,
            self.multiplications + other.multiplications,
            self.reads + other.reads,
        )

    @property
    def intensity(self) -> float:
        """Multiplications per memory operation."""
        return self.multiplications / self.reads


def pass_cost(shape: Shape, rows: int, outputs: int, context: float) -> Cost:
    """Of a pass that adds `rows` behind `context` tokens, and reads logits of `outputs` of them."""
    attended = context + (rows + 1) / 2  # by a row, in the mean
    per_row = shape.layers + shape.attention * attended
    reads = shape.layers + shape.output + shape.cache * (context + rows)
    return Cost(1, rows * per_row + outputs * shape.output, reads)


def costs(choice, messages, shapes: dict[str, Shape], prompts: bool) -> dict[str, Cost]:
    """Costs of a traced answer by role, "large" and "small". `prompts`: with the passes over the prompt.

    A decoding pass is taken to lie behind the prompt and half of the answer.
    """
    if choice.finished.trace.omitted:
        raise ValueError(f"{choice.finished.trace.omitted} passes have no record; allowed: 0")
    usage = choice.finished.usage
    half_way = usage.prompt_tokens + usage.completion_tokens / 2
    roles = {messages.PASS_ROLE_LARGE: "large", messages.PASS_ROLE_SMALL: "small"}
    found = {role: Cost() for role in shapes}
    for record in choice.finished.trace.passes:
        role = roles[record.role]
        prefill = record.kind == messages.PASS_KIND_PREFILL
        if prefill and not prompts:
            continue
        outputs = record.rows if record.kind == messages.PASS_KIND_VERIFY else 1
        context = 0 if prefill else half_way - record.rows / 2
        found[role] += pass_cost(shapes[role], record.rows, outputs, context)
    return found


def total(parts: Iterable[Cost]) -> Cost:
    return functools.reduce(Cost.__add__, parts, Cost())


# BiLD, figure 8.

PAIR = """
models {{ name: "large" path: "{large}" }}
models {{ name: "small" path: "{small}" }}
models {{ name: "aligned" path: "{aligned}" }}
deployments {{ name: "code" large: "large" small: "small" }}
deployments {{ name: "code-aligned" large: "large" small: "aligned" }}
"""


def bild_ways() -> list[Configuration]:
    """An exact and two lossy settings for each small model, and speculative sampling."""
    found = []
    for deployment in ("code", "code-aligned"):
        for rollback in (EXACT_ROLLBACK, 2, 5):
            found.append(bild("BiLD", deployment, rollback, fallback_threshold=0.4))
        found.append(speculative("speculative", deployment, draft_tokens=4))
    return found


@dataclass(frozen=True)
class Counted:
    """Sums over the answers of one way."""

    tokens: int
    large: Cost
    small: Cost

    @property
    def all(self) -> Cost:
        return self.large + self.small


def count(
    client: Client,
    way: Configuration,
    tasks: Sequence[Task],
    new_tokens: int,
    shapes: dict[str, Shape],
) -> Counted:
    """Without the passes over the prompts."""
    tokens, parts = 0, []
    for task in tasks:
        message = way.message(client.messages)
        request = client.request(way.deployment, list(task.prompt), new_tokens, message, trace=True)
        choice = client.complete(request)
        tokens += choice.finished.usage.completion_tokens
        parts.append(costs(choice, client.messages, shapes, prompts=False))
    return Counted(tokens, *(total(p[role] for p in parts) for role in ("large", "small")))


def bild_line(name: list[str], counted: Counted, ar: Counted) -> list[str]:
    """Costs per token of the answers, over those of autoregressive decoding."""

    def over(field: str) -> str:
        mine, theirs = (getattr(c.all, field) / c.tokens for c in (counted, ar))
        return f"{mine / theirs:.2f}"

    return [
        *name,
        f"{counted.large.passes / counted.tokens:.2f}",
        f"{counted.small.passes / counted.tokens:.2f}",
        over("multiplications"),
        over("reads"),
        f"{counted.all.intensity / ar.all.intensity:.2f}",
    ]


BILD_HEAD = [
    "method",
    "drafts by",
    "parameters",
    "large passes per token",
    "small passes per token",
]
BILD_HEAD += ["multiplications / AR", "memory operations / AR", "intensity / AR"]


def bild_table(serve, arguments: argparse.Namespace) -> str:
    aligned = ALIGNED if ALIGNED.exists() else SMALL
    if aligned is SMALL:
        print(f"without the aligned small model: {ALIGNED} is missing")
    shapes = {"large": Shape.read(LARGE), "small": Shape.read(SMALL)}
    tokenizer = Tokenizer.from_file(str(LARGE / "tokenizer.json"))
    _, held_out = corpus.split(corpus.read_documents(arguments.stdlib))
    stream = TokenStream(tokenizer, [document.text for document in held_out])
    tasks = cut_tasks(stream, arguments.prompts, 64, arguments.new_tokens, seed=2)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "pair.textproto"
        config.write_text(PAIR.format(large=LARGE, small=SMALL, aligned=aligned))
        with serve(config) as client:
            ar = count(client, AR, tasks, arguments.new_tokens, shapes)
            lines = [bild_line(["autoregressive", "-", "-"], ar, ar)]
            for way in bild_ways():
                if aligned is SMALL and way.deployment == "code-aligned":
                    continue
                counted = count(client, way, tasks, arguments.new_tokens, shapes)
                lines.append(bild_line([way.series, way.small, way.settings], counted, ar))
    return table(BILD_HEAD, lines)


# LLM-to-SLM, figure 6.


def conditioned_request(client: Client, way: conditioned_cost.Way, prompt: str, new_tokens: int):
    m = client.messages
    method = {"autoregressive": m.Autoregressive, "llm_to_slm": m.LlmToSlm}[way.method]()
    return m.GenerateRequest(
        model=way.deployment,
        text=prompt,
        temperature=0,
        max_new_tokens=new_tokens,
        ignore_eos=True,
        trace=True,
        **{way.method: method},
    )


def conditioned_line(pair: str, new_tokens: int, large: Cost, small: Cost, both: Cost) -> list[str]:
    millions = [f"{cost.multiplications / 1e6:,.0f}" for cost in (large, small, both)]
    ratios = [both.multiplications / small.multiplications]
    ratios += [large.multiplications / both.multiplications]
    return [pair, str(new_tokens), *millions, *(f"{ratio:.2f}" for ratio in ratios)]


CONDITIONED_HEAD = ["large → small", "answer tokens", "large, millions of multiplications", "small"]
CONDITIONED_HEAD += ["LLM-to-SLM", "LLM-to-SLM / small", "large / LLM-to-SLM"]


def conditioned_table(serve, arguments: argparse.Namespace) -> str:
    """Prompts' passes included. The small model's deployment names it as its large model."""
    lines = []
    for pair in conditioned_cost.PAIRS:
        if "docstring" in pair.name or not (pair.large.exists() and pair.small.exists()):
            continue
        shapes = {"large": Shape.read(pair.large), "small": Shape.read(pair.small)}
        (prompt,) = conditioned_cost.cut_prompts(arguments.stdlib, pair, 1, seed=2)
        with tempfile.TemporaryDirectory() as folder:
            names = conditioned_cost.write_projectors(pair, Path(folder))
            config = Path(folder) / "cost.textproto"
            config.write_text(conditioned_cost.deployment_file(pair, Path(folder), names))
            with serve(config) as client:
                for new_tokens in LENGTHS:
                    own = {"large": shapes["small"]}
                    by_way = []
                    for way, known in (
                        (conditioned_cost.LARGE, shapes),
                        (conditioned_cost.SMALL, own),
                        (conditioned_cost.WHOLE, shapes),
                    ):
                        request = conditioned_request(client, way, prompt, new_tokens)
                        choice = client.complete(request)
                        found = costs(choice, client.messages, known, prompts=True)
                        by_way.append(total(found.values()))
                    lines.append(conditioned_line(pair.name, new_tokens, *by_way))
    return table(CONDITIONED_HEAD, lines)


# PPD, figure 4.

WORKER = """
devices {{ name: "cpu:0" threads: 1 }}
devices {{ name: "cpu:0/1" threads: 1 }}
models {{ name: "large" path: "{large}" extras {{ name: "head" path: "{head}" }} }}
models {{
  name: "worker" path: "{large}" layers: {above} device: "cpu:0/1"
  extras {{ name: "head" path: "{head}" }}
}}
deployments {{ name: "code" large: "large" ppd {{ exit_layer: {early} workers: "worker" head: "head" }} }}
"""


def ppd_line(stats: Sequence, tokens: int, candidates: int, layers: int) -> list[str]:
    """`stats`: of the answers, with `tokens` tokens in all."""

    def per_token(field: str) -> float:
        return sum(getattr(s, field) for s in stats) / (tokens * layers)

    rate = sum(s.matches for s in stats) / sum(s.rounds for s in stats)
    main, worker = per_token("main_layers"), per_token("worker_layers")
    above = 1 - EARLY / layers
    return [
        str(candidates),
        f"{100 * rate:.0f}",
        f"{main:.2f}",
        f"{1 - above * rate:.2f}",
        f"{main + worker:.2f}",
        f"{1 - above * rate + candidates * above:.2f}",
    ]


PPD_HEAD = ["k", "match rate, %", "latency in layers / AR", "Theorem 4.1"]
PPD_HEAD += ["compute in layers per token / AR", "equation 6"]


def ppd_table(serve, arguments: argparse.Namespace) -> str:
    layers = AutoConfig.from_pretrained(LARGE).num_hidden_layers
    tokenizer = Tokenizer.from_file(str(LARGE / "tokenizer.json"))
    _, held_out = corpus.split(corpus.read_documents(arguments.stdlib))
    stream = TokenStream(tokenizer, [document.text for document in held_out])
    tasks = cut_tasks(stream, arguments.prompts, 64, arguments.new_tokens, seed=2)
    head = ROOT / f"models/code-large-heads/layer-{EARLY}"
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "ppd.textproto"
        config.write_text(WORKER.format(large=LARGE, head=head, early=EARLY, above=layers - EARLY))
        with serve(config) as client:
            for candidates in CANDIDATES:
                stats, tokens = [], 0
                for task in tasks:
                    ppd = client.messages.Ppd(num_candidates=candidates)
                    choice = client.complete(
                        client.request("code", list(task.prompt), arguments.new_tokens, ppd)
                    )
                    stats.append(choice.finished.stats)
                    tokens += choice.finished.usage.completion_tokens
                lines.append(ppd_line(stats, tokens, candidates, layers))
    return table(PPD_HEAD, lines)


TABLES = {"bild": bild_table, "llm-to-slm": conditioned_table, "ppd": ppd_table}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("method", choices=TABLES)
    parser.add_argument("--prompts", type=int, default=16, help="of bild and ppd (16)")
    parser.add_argument("--new-tokens", type=int, default=128, help="of bild and ppd (128)")
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    parser.add_argument("--server", type=Path, default=BINARY)
    arguments = parser.parse_args()
    serve = functools.partial(server, arguments.server, None)
    print(TABLES[arguments.method](serve, arguments))


if __name__ == "__main__":
    main()
