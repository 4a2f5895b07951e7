"""LLM-to-SLM's ablations (arXiv 2402.16844, section 4.5 and appendix B) on a pair of decoders.

    python -m tuning.conditioned_ablation [--steps N] [--write]

Varies the trained part of the small model (all weights, low-rank additions, none), the fusion of rows, the
layer of the large model, and the depth of the projector. Variants are trained with one seed on the same texts
in the same order, from the same small model, and evaluated on the same held-out texts. Results are cached, so
an interrupted run resumes.
"""

import argparse
import datetime
import json
import math
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch

from measure import machine
from measure.paths import ROOT
from measure.report import put, table
from tuning import conditioned_samples, corpus, frozen_model, fusion, llm_to_slm, projector_file
from tuning.conditioned_samples import Reader, Samples
from tuning.llm_to_slm import Conditioned, Settings

PAGE = ROOT / "docs" / "reports" / "llm_to_slm.md"
LOW_RANK_RATE = 1e-3
MATCHED = "the same texts, conditioned on their own", "conditioned on another prompt"
PART = "ablations of llm to slm"
# Table 9, layers of GPT2 XL (48) read for GPT2, mean of ROUGE-1, 2 and L; and table 7, BLEU.
PAPER = [
    ["GPT2 alone (CNN/Daily Mail)", "27.83"],
    ["conditioned on GPT2 XL, layer 1; 4; 8; all", "28.03; 26.25; 23.51; 26.94"],
    ["T5 Large → T5 Small, translating, add; replace", "31.54; 31.47"],
    ["the same, the small model frozen; LoRA of it, unconditioned", "30.27; 26.36"],
]


def variants(layers: int) -> dict[str, dict]:
    """Variants of: last layer of the large model, added, all weights of the small model trained."""
    found: dict[str, dict] = {
        "unconditioned": {"conditioned": False},
        "add, last layer": {},
        "replace, last layer": {"fusion": "replace"},
    }
    quarters = sorted({math.ceil(layers * part / 4) for part in (1, 2, 3)} - {layers})
    found |= {f"add, layer {layer}": {"layer": layer} for layer in quarters}
    low_rank = {"train": "lora", "small_rate": LOW_RANK_RATE}
    found |= {
        "add, linear projector": {"linear": True},
        "add, LoRA of the small model": low_rank,
        "unconditioned, LoRA of the small model": low_rank | {"conditioned": False},
        "add, the small model frozen": {"train": "frozen"},
    }
    return found


class Pair:
    """Texts and models that all variants share."""

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.large = Reader(arguments.large)
        self.layers = self.large.shape[0]
        tokenizers = self.large.tokenizer, frozen_model.load_tokenizer(arguments.small)
        self.shared = tokenizers[0].get_vocab() == tokenizers[1].get_vocab()
        self.alone: dict[str, dict] = {}

    def settings(self, **change) -> Settings:
        names = ("samples", "answer", "batch", "steps", "checked", "seed", "rate", "bfloat16")
        given = {name: getattr(self.arguments, name) for name in names}
        return replace(Settings(layer=self.layers, **given), **change)

    def read(self, s: Settings, small) -> tuple[Samples, Samples]:
        return llm_to_slm.read_samples(self.arguments, s, self.large, small, self.shared)[:2]

    def measure(self, s: Settings) -> dict[str, dict]:
        """Nats per token of a variant's held-out texts, by what said them; of its file where it is done."""
        key = conditioned_samples.key_of(asdict(s), self.large.key, str(self.arguments.small))
        file = self.arguments.work / f"ablation-{key}.json"
        if file.exists():
            return json.loads(file.read_text())
        small = frozen_model.load(self.arguments.small)
        training, held_out = self.read(s, small)
        width = self.large.shape[1]
        standard = training.standard() if s.conditioned else (torch.zeros(width), torch.ones(width))
        conditioned = Conditioned(small.model, *standard, s)
        run = conditioned_samples.key_of(
            asdict(s), self.large.key, projector_file.fingerprint_of(small.model)
        )
        llm_to_slm.train(conditioned, training, s, self.arguments.work / f"training-{run}.pt")
        measured = llm_to_slm.held_out_likelihoods(conditioned, held_out)
        file.write_text(json.dumps(measured))
        return measured

    def untrained(self, s: Settings) -> dict[str, dict]:
        """Of the two models as they came."""
        small = frozen_model.load(self.arguments.small)
        held_out = self.read(replace(s, conditioned=False), small)[1]
        models = {"small": small.model}
        if self.shared:
            models["large"] = self.large.model.float()
        return llm_to_slm.likelihoods(
            {
                name: lambda b, model=model: fusion.head_logits(model, b.says, input_ids=b.ids)
                for name, model in models.items()
            },
            held_out,
        )


def line(name: str, nats: dict[str, float], matched: tuple[dict, dict] | None = None) -> list[str]:
    """`matched`: of the texts that have another one as long, conditioned on their own prompt and of its."""
    cells = [f"{value:.3f}" for value in nats.values()]
    return [name, *cells, *(f"{m['all']:.3f}" for m in matched or ())] + ["-"] * (2 * (not matched))


def section(
    alone: dict[str, dict], found: dict[str, dict], s: Settings, conditions: list[list[str]]
) -> str:
    lines = [line(f"unchanged {name} model", nats) for name, nats in alone.items()]
    for name, nats in found.items():
        said = nats.get("llm_to_slm") or nats["small, tuned alone"]
        matched = [nats[who] for who in MATCHED if who in nats]
        lines.append(line(name, said, tuple(matched)))
    parts = [f"tokens {part}" for part in list(alone["small"])[1:]]
    head = ["", "nats/token", *parts, "matched texts, own prompt", "matched texts, another prompt"]
    return f"""{s.steps} steps of {s.batch} texts ({s.samples} texts of {s.shortest_prompt} to {s.longest_prompt} tokens and the next {s.answer}), {s.checked} held-out ones.

{table(head, lines)}

The paper's results:

{table(["", "score"], PAPER)}

{table(["condition", ""], conditions)}
"""


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", type=Path, default=ROOT / "models/code-large")
    parser.add_argument("--small", type=Path, default=ROOT / "models/code-small")
    sizes = {"samples": Settings.samples, "answer": Settings.answer, "batch": Settings.batch}
    sizes |= {"steps": 256, "checked": 512, "seed": Settings.seed}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rate", type=float, default=Settings.rate, help="of the projector")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="those whose names contain one")
    parser.add_argument("--bfloat16", action="store_true", help="products in training")
    parser.add_argument("--stdlib", type=Path, default=corpus.standard_library())
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache/tandem/llm_to_slm")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    pair, found = Pair(arguments), {}
    alone = pair.untrained(pair.settings())
    for name, change in variants(pair.layers).items():
        if arguments.only and not any(part in name for part in arguments.only):
            continue
        found[name] = pair.measure(pair.settings(**change))
        print(name, json.dumps(found[name]), flush=True)
    conditions = [
        ["command", "`python -m tuning.conditioned_ablation " + " ".join(sys.argv[1:]) + "`"],
        ["commit", machine.commit(ROOT)],
        ["date", str(datetime.date.today())],
    ]
    text = section(alone, found, pair.settings(), conditions)
    print(text)
    if arguments.write:
        put(PAGE, PART, text)


if __name__ == "__main__":
    main()
